//! Random programs, compared with a model: a map from each page to its contents and protection.
//!
//! In tests with large pages, each page of the model stands for several pages, of which only the
//! first is touched. Otherwise few steps would concern whole tables.

mod changes;
mod reuse;
mod scale;
mod steps;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use crate::platform::*;
use changes::{enforced, model_move, model_protect};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use scale::Scale;
use shootdown_vm::{
    Access, AddressSpace, Advice, Area, Backing, FaultError, File, FileId, MapError, PAGE_BYTES,
    Place, Protection, RangeError, Sharing, Vm,
};
use steps::{Kind, Step, large_steps, steps};

const CPUS: usize = 3;
/// Number of pages of a file between the first pages of areas.
const FILE_PART_PAGES: u64 = 24;

/// The contents of a file, or of memory that is shared without one.
type Object = Rc<RefCell<HashMap<u64, u64>>>;

#[derive(Clone)]
struct Page {
    protection: Protection,
    sharing: Sharing,
    /// The value that was written privately.
    own: Option<u64>,
    object: Option<(Object, u64)>,
    /// `true` if the contents may have been discarded.
    is_discardable: bool,
}

impl Page {
    fn read(&self) -> u64 {
        let shared = || {
            self.object
                .as_ref()
                .map_or(0, |(object, page)| object.borrow().get(page).copied().unwrap_or(0))
        };
        self.own.unwrap_or_else(shared)
    }

    fn write(&mut self, value: u64) {
        match (&self.object, self.sharing) {
            (Some((object, page)), Sharing::Shared) => {
                object.borrow_mut().insert(*page, value);
            }
            _ => self.own = Some(value),
        }
    }
}

type Model = BTreeMap<u64, Page>;

struct Fixture<const LOCK: u8, const WHEN: u8> {
    host: Host,
    file: (Arc<File<Host>>, Object),
    spaces: Vec<(Space<LOCK, WHEN>, Model)>,
    next_value: u64,
    scale: Scale,
    /// Number of parts of the file that areas begin with, in turn.
    file_parts: u64,
    collapsed: usize,
}

impl<const LOCK: u8, const WHEN: u8> Fixture<LOCK, WHEN> {
    fn new(fault_around_bytes: u64) -> Self {
        let host = Host::new(4096, CPUS);
        let vm = system(&host).with_fault_around(fault_around_bytes);
        let file = File::new(host.clone());
        Self::with(host, &vm, file)
    }

    /// Creates a fixture in which memory is reclaimed and the file is stored.
    fn with_reclaim() -> Self {
        let host = Host::new(4096, CPUS);
        let vm = system(&host).with_fault_around(4 * PAGE_BYTES).with_reclaim();
        let file = File::stored(host.clone(), FileId(1));
        Self::with(host, &vm, file)
    }

    fn with(host: Host, vm: &OurVm<LOCK, WHEN>, file: File<Host>) -> Self {
        let space = AddressSpace::new(vm).unwrap();
        let file = (Arc::new(file), Object::default());
        let spaces = vec![(space, Model::new())];
        Self { file, spaces, host, next_value: 1, scale: Scale(1), file_parts: 1, collapsed: 0 }
    }

    /// Creates a fixture with room for large pages.
    fn with_large_pages() -> Self {
        Self::large(|vm| vm, File::new)
    }

    /// Does the same, with reclaim.
    fn with_large_pages_and_reclaim() -> Self {
        Self::large(Vm::with_reclaim, |host| File::stored(host, FileId(1)))
    }

    fn large(
        system_of: impl FnOnce(OurVm<LOCK, WHEN>) -> OurVm<LOCK, WHEN>,
        file_of: impl FnOnce(Host) -> File<Host>,
    ) -> Self {
        let scale = Scale::LARGE;
        let host = Host::with_addresses(16384, CPUS, scale.pages(0, PAGES));
        let fixture = Self::with(host.clone(), &system_of(system(&host)), file_of(host.clone()));
        Self { scale, ..fixture }
    }

    fn step(&mut self, which: usize, step: &Step) {
        let scale = self.scale;
        let index = which % self.spaces.len();
        match *step {
            Step::Map { count, protection, kind } => self.map(index, count, protection, kind),
            Step::MapFixed { first, count, protection, kind } => {
                let place = Place::Fixed(scale.pages(first, count));
                let (backing, sharing, object) = self.backing(kind);
                let space = &self.spaces[index].0;
                assert_eq!(
                    space.map(place, protection, sharing, backing),
                    Ok(scale.pages(first, 1).start)
                );
                self.model_map(index, first, count, protection, sharing, object);
            }
            Step::Unmap { first, count } => {
                let (space, model) = &mut self.spaces[index];
                space.unmap(scale.pages(first, count)).unwrap();
                model.retain(|&page, _| !(first..first + count).contains(&page));
            }
            Step::Protect { first, count, protection } => {
                let (space, model) = &mut self.spaces[index];
                let is_covered = (first..first + count).all(|page| model.contains_key(&page));
                let result = space.protect(scale.pages(first, count), protection);
                assert_eq!(result, if is_covered { Ok(()) } else { Err(RangeError::NoArea) });
                if is_covered {
                    model_protect(model, first, count, protection);
                }
            }
            Step::ProtectExisting { first, count, protection } => {
                let (space, model) = &mut self.spaces[index];
                space.protect_existing(scale.pages(first, count), protection).unwrap();
                model_protect(model, first, count, protection);
            }
            Step::Move { first, count, to, to_count } => {
                let (space, model) = &mut self.spaces[index];
                let result = space.remap(scale.pages(first, count), scale.pages(to, to_count));
                assert_eq!(result, model_move(model, first, count, to, to_count));
            }
            Step::Discard { first, count } => self.advise(index, first, count, Advice::DontNeed),
            Step::Free { first, count } => self.advise(index, first, count, Advice::Free),
            Step::PageOut { first, count } => self.advise(index, first, count, Advice::PageOut),
            Step::WriteBack { first, count } => self.write_back(index, first, count),
            Step::Reclaim { node, count } => {
                self.spaces[0].0.vm().reclaim(node, count);
            }
            Step::Collapse { first, count } => {
                let range = scale.pages(first, count);
                self.collapsed += self.spaces[index].0.collapse(range).unwrap();
            }
            Step::Migrate { first, count, node } => {
                self.spaces[index].0.migrate(scale.pages(first, count), node).unwrap();
            }
            Step::Touch { page, count, cpu, access } => {
                (page..page + count).for_each(|page| self.touch(index, page, cpu, access));
            }
            Step::FreeDiscarded => {
                free_old_discarded(self.spaces[0].0.vm());
            }
            Step::Fork if self.spaces.len() < 4 => {
                let child = self.spaces[index].0.fork().unwrap();
                let model = self.spaces[index].1.clone();
                self.spaces.push((child, model));
            }
            Step::Exit if self.spaces.len() > 1 => self.spaces.swap_remove(index).0.exit(),
            _ => self.change(index, step),
        }
        self.check();
    }

    fn advise(&mut self, index: usize, first: u64, count: u64, advice: Advice) {
        let scale = self.scale;
        let (space, model) = &mut self.spaces[index];
        let is_covered = (first..first + count).all(|page| model.contains_key(&page));
        let result = space.advise(scale.pages(first, count), advice);
        assert_eq!(result, if is_covered { Ok(()) } else { Err(RangeError::NoArea) });
        for (_, page) in model.range_mut(first..first + count) {
            match advice {
                Advice::DontNeed => page.own = None,
                Advice::Free => page.is_discardable |= page.object.is_none() && page.own.is_some(),
                Advice::Cold | Advice::PageOut => {}
            }
        }
    }

    fn map(&mut self, index: usize, count: u64, protection: Protection, kind: Kind) {
        let scale = self.scale;
        let place = Place::Anywhere { length: count * scale.bytes() };
        let (backing, sharing, object) = self.backing(kind);
        let (space, model) = &mut self.spaces[index];
        let is_free = |first: u64| (first..first + count).all(|page| !model.contains_key(&page));
        let has_room = (0..=PAGES - count).any(is_free);
        match space.map(place, protection, sharing, backing) {
            Ok(start) => {
                let first = scale.page(start);
                assert!(is_free(first), "the range was in use");
                self.model_map(index, first, count, protection, sharing, object);
            }
            Err(error) => assert!(error == MapError::NoRoom && !has_room),
        }
    }

    fn model_map(
        &mut self,
        index: usize,
        first: u64,
        count: u64,
        protection: Protection,
        sharing: Sharing,
        object: Option<(Object, u64)>,
    ) {
        for n in 0..count {
            let object = object.clone().map(|(object, first_page)| (object, first_page + n));
            let protection = enforced(protection);
            let page = Page { protection, sharing, own: None, object, is_discardable: false };
            self.spaces[index].1.insert(first + n, page);
        }
    }

    fn backing(&self, kind: Kind) -> (Backing<Host>, Sharing, Option<(Object, u64)>) {
        let first_page = self.next_value % self.file_parts * FILE_PART_PAGES;
        let file = Backing::File { file: Arc::clone(&self.file.0), first_page };
        let object = Some((Rc::clone(&self.file.1), first_page));
        match kind {
            Kind::Private => (Backing::Anonymous, Sharing::Private, None),
            Kind::SharedAnonymous => {
                (Backing::Anonymous, Sharing::Shared, Some((Object::default(), 0)))
            }
            Kind::PrivateFile => (file, Sharing::Private, object),
            Kind::SharedFile => (file, Sharing::Shared, object),
        }
    }

    fn touch(&mut self, index: usize, page: u64, cpu: usize, how: Access) {
        let scale = self.scale;
        let value = self.next_value;
        self.next_value += 1;
        let (space, model) = &mut self.spaces[index];
        let result = access(space, cpu, scale.pages(page, 1).start + 8, how, value);
        let expected = match model.get_mut(&page) {
            None => Err(FaultError::NoArea),
            Some(page) if !page.protection.contains(how.needs()) => Err(FaultError::NotPermitted),
            Some(page) => {
                if page.is_discardable && result == Ok(0) {
                    page.own = None;
                }
                if how == Access::Write {
                    page.write(value);
                    page.is_discardable = false;
                }
                Ok(page.read())
            }
        };
        let address = scale.pages(page, 1).start;
        if result.is_ok() && !self.host.waits(address) {
            let allowed = space.translation(address);
            assert!(allowed.is_some_and(|allowed| allowed.contains(how.needs())));
        }
        assert_eq!(result, expected, "{how:?} of page {page} on CPU {cpu}");
    }

    /// Checks the invariants after a step.
    fn check(&self) {
        let scale = self.scale;
        self.host.check_caches();
        for (space, model) in &self.spaces {
            let areas = space.areas();
            let mapped: Vec<_> = areas.iter().flat_map(|area| scale.pages_of(area)).collect();
            let expected: Vec<_> =
                model.iter().map(|(&page, is)| (page, is.protection, is.sharing)).collect();
            assert_eq!(mapped, expected);
            for page in 0..PAGES {
                let address = scale.pages(page, 1).start;
                let is = model.get(&page);
                assert_eq!(space.is_mapped(address), is.is_some());
                let allowed = space.translation(address).unwrap_or(Protection::empty());
                assert!(is.map_or(Protection::empty(), |is| is.protection).contains(allowed));
            }
            if LOCK == KEEPING {
                continue;
            }
            for table in self.host.tables_of(space.root()) {
                let needs = |area: &Area<Host>| {
                    area.range.start < table.end && table.start < area.range.end
                };
                assert!(areas.iter().any(needs), "no area needs the table of {table:x?}");
            }
        }
    }

    fn end(mut self) {
        let scale = self.scale;
        let space = AddressSpace::new(self.spaces[0].0.vm()).unwrap();
        for (space, _) in self.spaces.drain(..) {
            space.exit();
        }
        // The values that were written to the file must be in memory or on the disk.
        let (file, object) = self.file;
        let backing = Backing::File { file: Arc::clone(&file), first_page: 0 };
        space.map(Place::Fixed(scale.pages(0, PAGES)), READ, Sharing::Shared, backing).unwrap();
        for (&page, &word) in object.borrow().iter().filter(|&(&page, _)| page < PAGES) {
            let address = scale.pages(page, 1).start;
            assert_eq!(access(&space, 0, address, Access::Read, 0), Ok(word));
        }
        let vm = space.vm().clone();
        space.exit();
        vm.close(file);
        vm.reclaim(0, usize::MAX);
        drop(space);
        assert_eq!(self.host.frames_in_use(), 1, "only the page of zeros is in use");
    }
}

fn run<const LOCK: u8, const WHEN: u8>(steps: &[(usize, Step)]) {
    run_with_fault_around::<LOCK, WHEN>(0, steps);
}

fn run_with_fault_around<const LOCK: u8, const WHEN: u8>(bytes: u64, steps: &[(usize, Step)]) {
    run_in(Fixture::<LOCK, WHEN>::new(bytes), steps);
}

fn run_with_reclaim<const LOCK: u8>(steps: &[(usize, Step)]) {
    run_in(Fixture::<LOCK, AT_WAIT>::with_reclaim(), steps);
}

fn run_in<const LOCK: u8, const WHEN: u8>(
    mut fixture: Fixture<LOCK, WHEN>,
    steps: &[(usize, Step)],
) {
    steps.iter().for_each(|(which, step)| fixture.step(*which, step));
    fixture.end();
}

/// Runs programs that make large pages, and change parts of them.
fn run_with_large_pages<const LOCK: u8>(fixture: fn() -> Fixture<LOCK, AT_WAIT>) {
    let collapsed = Cell::new(0);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    let program = |steps: Vec<(usize, Step)>| {
        let mut fixture = fixture();
        for (which, step) in &steps {
            fixture.step(*which, step);
        }
        collapsed.update(|count| count + fixture.collapsed);
        fixture.end();
        Ok(())
    };
    let steps = prop::collection::vec(large_steps(), 1..60);
    TestRunner::new(config).run(&steps, program).unwrap();
    assert!(collapsed.get() > 50, "only {} large pages were made", collapsed.get());
}

#[test]
fn programs_match_model_with_large_pages_exclusive_lock() {
    run_with_large_pages(Fixture::<EXCLUSIVE, AT_WAIT>::with_large_pages);
}

#[test]
fn programs_match_model_with_large_pages_released_lock() {
    run_with_large_pages(Fixture::<RELEASED, AT_WAIT>::with_large_pages);
}

#[test]
fn programs_match_model_with_large_pages_kept_tables() {
    run_with_large_pages(Fixture::<KEEPING, AT_WAIT>::with_large_pages);
}

#[test]
fn programs_match_model_with_large_pages_reclaim() {
    run_with_large_pages(Fixture::<SHARED, AT_WAIT>::with_large_pages_and_reclaim);
}

#[test]
fn programs_match_model_with_large_pages_replicas() {
    run_with_large_pages(Fixture::<REPLICATED, AT_WAIT>::with_large_pages_and_reclaim);
}

/// The model detects a memory manager whose flushes do not reach all CPUs that share a table.
#[test]
#[should_panic(expected = "is still writable")]
fn model_detects_lost_sharers() {
    let mut fixture = Fixture::<REPLICATED, AT_WAIT>::with_reclaim();
    fixture.host.forget_sharers();
    let (protection, kind, access) = (READ_WRITE, Kind::Private, Access::Write);
    fixture.step(0, &Step::MapFixed { first: 0, count: 4, protection, kind });
    fixture.step(0, &Step::Touch { page: 0, count: 4, cpu: 1, access });
    fixture.step(0, &Step::Protect { first: 0, count: 4, protection: READ });
}

#[test]
fn programs_match_model_with_large_pages_batches() {
    run_with_large_pages(Fixture::<BATCHING, AT_WAIT>::with_large_pages_and_reclaim);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Reads return the model's values, forks are isolated, accesses are allowed exactly where the
    /// model allows them, no CPU caches an outdated translation, no table without an area is left,
    /// and at the end every frame is free. The lock is held for writing during flushes.
    #[test]
    fn programs_match_model_under_exclusive_lock(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run::<EXCLUSIVE, AT_WAIT>(&steps);
    }

    /// The lock is held for reading during flushes.
    #[test]
    fn programs_match_model_under_shared_lock(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run::<SHARED, AT_WAIT>(&steps);
    }

    /// The lock is released during flushes.
    #[test]
    fn programs_match_model_with_released_lock(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run::<RELEASED, AT_WAIT>(&steps);
    }

    /// Empty page tables are kept.
    #[test]
    fn programs_match_model_with_kept_tables(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run::<KEEPING, AT_WAIT>(&steps);
    }

    /// A fault also maps the neighbours of a file's page.
    #[test]
    fn programs_match_model_with_fault_around(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run_with_fault_around::<RELEASED, AT_WAIT>(8 * PAGE_BYTES, &steps);
    }

    /// Pages are reclaimed and migrated, each with its own flush.
    #[test]
    fn programs_match_model_with_reclaim(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run_with_reclaim::<SHARED>(&steps);
    }

    /// Pages are reclaimed and migrated, many with one flush.
    #[test]
    fn programs_match_model_with_batches(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run_with_reclaim::<BATCHING>(&steps);
    }

    /// Pages are discarded in place, and freed later.
    #[test]
    fn programs_match_model_with_discards_in_place(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run_with_reclaim::<IN_PLACE>(&steps);
    }

    /// Each CPU has upper page tables of its own.
    #[test]
    fn programs_match_model_with_replicas(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run_with_reclaim::<REPLICATED>(&steps);
    }

    /// The flush is complete when `flush` returns. This detects a flush that comes before the page
    /// tables are changed.
    #[test]
    fn programs_match_model_with_immediate_flushes(
        steps in prop::collection::vec(steps(), 1..60)
    ) {
        run::<RELEASED, AT_FLUSH>(&steps);
    }
}
