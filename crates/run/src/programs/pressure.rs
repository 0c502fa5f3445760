//! Memory that is short, or on the wrong node: pages that are reclaimed, and pages that move
//! between nodes while threads use them.

use shootdown_program::operation::{
    Access, AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::parts::{CHUNK, chunks, head_start, start_all, steps};

fn touch_all(area: AreaId, pages: u64, access: Access) -> impl Iterator<Item = Operation> {
    chunks(pages).map(move |pages| Operation::Touch { area, pages, access })
}

/// Threads of one process that read a mapped file, each from another page on, and each page again
/// some pages later. With memory for a part of the file, a page is reclaimed in between, and the
/// CPU that reads it again may still have cached its translation.
///
/// A page that is reclaimed without a flush shows as a wrong word.
#[derive(Clone, Copy, Debug)]
pub struct RereadFile {
    /// Number of threads.
    pub threads: u32,
    /// Length of the file, in pages.
    pub pages: u64,
    /// Number of pages after which a page is read again.
    pub distance: u64,
}

impl Workload for RereadFile {
    fn name(&self) -> String {
        format!("reread-file-{}", self.threads)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { threads, pages, distance } = *self;
        let area = AreaId(0);
        if program == ProgramId(0) {
            let file = Mapping::SharedFile(FileId(0));
            let map = Operation::map(area, pages, Permission::Read, file);
            let all = (1..=threads).map(ProgramId);
            let end = Operation::End { iterations: u64::from(threads) * pages };
            return steps![[map], start_all(all, Operation::Spawn), [end]];
        }
        let first = u64::from(program.0) * pages / u64::from(threads);
        Box::new((0..pages).flat_map(move |turn| {
            let page = (first + turn) % pages;
            let earlier = (page + pages - distance) % pages;
            [page, earlier].map(|page| Operation::read(area, page..page + 1))
        }))
    }
}

/// Threads that write to memory of their process, while another thread moves it from node to node
/// (`move_pages`, or Linux's *automatic NUMA balancing*).
///
/// Each thread ends the measurement, and so does the thread that moves pages. If the other threads
/// continue for longer, [`Outcome::time`](crate::Outcome) is their time, and [`time_range`] is the
/// time by which the moves ended earlier.
///
/// [`time_range`]: crate::Outcome::time_range
#[derive(Clone, Copy, Debug)]
pub struct PageMigration {
    /// Number of threads that write.
    pub threads: u32,
    /// Number of pages of each thread.
    pub pages: u64,
    /// Number of times that all pages are moved.
    pub rounds: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of times that each thread writes all of its pages.
    pub laps: u64,
    /// Time that a thread computes for each page that it writes.
    pub compute_ns: u64,
    /// Time that a thread sleeps after it has written all of its pages; 0 for no sleep.
    pub sleep_ns: u64,
    /// Seed of the threads' delays, as in [`Loop`](super::Loop).
    pub seed: u64,
}

impl PageMigration {
    const MOVER: ProgramId = ProgramId(0);
}

impl Workload for PageMigration {
    fn name(&self) -> String {
        let sleeping = if self.sleep_ns == 0 { "" } else { "-sleeping" };
        format!("page-migration-{}{sleeping}", self.threads)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { threads, pages, rounds, nodes, laps, compute_ns, sleep_ns, seed } = *self;
        let all = (1..=threads).map(ProgramId);
        if program == Self::MOVER {
            let area = |writer: ProgramId| AreaId(writer.0);
            let maps = all.clone().map(move |writer| Operation::map_own(area(writer), pages));
            let fill =
                all.clone().flat_map(move |writer| touch_all(area(writer), pages, Access::Write));
            let spawn = all.clone().map(Operation::Spawn);
            let moves = {
                let all = all.clone();
                (0..rounds).flat_map(move |round| {
                    let node = (round as usize + 1) % nodes;
                    all.clone().map(move |writer| Operation::MovePages {
                        area: area(writer),
                        pages: 0..pages,
                        node,
                    })
                })
            };
            let end = Operation::End { iterations: rounds * pages * u64::from(threads) };
            let join = all.map(Operation::Join);
            return steps![maps, fill, spawn, [Operation::Begin], moves, [end], join];
        }
        let area = AreaId(program.0);
        let lap = move |_| {
            touch_all(area, pages, Access::Write)
                .flat_map(move |touch| [touch, Operation::Compute(CHUNK * compute_ns)])
                .chain((sleep_ns != 0).then_some(Operation::Sleep(sleep_ns)))
        };
        let laps = (0..laps).flat_map(lap);
        steps![head_start(seed, program), laps, [Operation::End { iterations: 0 }]]
    }
}
