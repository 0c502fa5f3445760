//! The tasks that exist at the start of a recording, read from /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use shootdown_recording::assemble::{StartTask, TaskKind};
use shootdown_recording::raw::Tid;

use super::error::RecordError;

/// Linux's `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Indices of the parent and of the flags in `stat`, counted from the field after the name.
const PARENT: usize = 1;
const FLAGS: usize = 6;

/// The first namespace of process numbers, as Linux names it in /proc (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Refuses a namespace in which /proc has other process numbers than the kernel's events.
///
/// # Errors
///
/// If this process is in such a namespace. Nothing in it translates the numbers.
pub(super) fn refuse_namespace() -> Result<(), RecordError> {
    let own = fs::read_link("/proc/self/ns/pid");
    match own {
        // A kernel without namespaces has no such file.
        Ok(own) if own != Path::new(FIRST_NAMESPACE) => Err(RecordError::PidNamespace),
        _ => Ok(()),
    }
}

/// The tasks of the machine, by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    tasks: BTreeMap<u32, StartTask>,
    /// The parent of each process.
    parents: BTreeMap<u32, u32>,
}

impl Tasks {
    /// Adds the tasks that live now.
    ///
    /// # Errors
    ///
    /// If there is no /proc. A task that ends during the call is left out.
    pub(super) fn update(&mut self) -> Result<(), RecordError> {
        let proc = Path::new("/proc");
        let processes = fs::read_dir(proc).map_err(|error| RecordError::kernel(proc, error))?;
        let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        for entry in processes.flatten() {
            let Some(process) = number(&entry) else { continue };
            let threads = fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten();
            for thread in threads {
                let Some(tid) = number(&thread) else { continue };
                let stat = fs::read(thread.path().join("stat")).unwrap_or_default();
                if let Some((task, parent)) = parse(tid, process, &String::from_utf8_lossy(&stat)) {
                    self.parents.insert(process, parent);
                    self.tasks.entry(tid).or_insert(task);
                }
            }
        }
        Ok(())
    }

    pub(super) fn has_process(&self, process: u32) -> bool {
        self.parents.contains_key(&process)
    }

    /// Returns the processes that run a program.
    pub(super) fn programs(&self) -> impl Iterator<Item = u32> + '_ {
        let programs = self.tasks.values().filter(|task| task.kind == TaskKind::User);
        programs.map(|task| task.process)
    }

    /// Returns these processes and all their descendants.
    pub(super) fn with_descendants(&self, processes: &[u32]) -> BTreeSet<u32> {
        let mut found: BTreeSet<u32> = processes.iter().copied().collect();
        loop {
            let is_child = |(_, parent): &(&u32, &u32)| found.contains(parent);
            let children: Vec<_> =
                self.parents.iter().filter(is_child).map(|(process, _)| *process).collect();
            let before = found.len();
            found.extend(children);
            if found.len() == before {
                return found;
            }
        }
    }

    /// Returns the threads of these processes.
    pub(super) fn threads<'t>(
        &'t self,
        processes: &'t BTreeSet<u32>,
    ) -> impl Iterator<Item = &'t StartTask> {
        self.tasks.values().filter(|task| processes.contains(&task.process))
    }

    /// Returns all tasks.
    pub(super) fn into_tasks(self) -> impl Iterator<Item = StartTask> {
        self.tasks.into_values()
    }
}

/// Parses `stat`: a number, the name in parentheses, which may contain any character, and more
/// numbers. Returns the task, and the parent of its process.
fn parse(tid: u32, process: u32, stat: &str) -> Option<(StartTask, u32)> {
    let (name, numbers) = stat.split_once('(')?.1.rsplit_once(')')?;
    let number = |index| numbers.split_whitespace().nth(index)?.parse::<u64>().ok();
    let (parent, flags) = (u32::try_from(number(PARENT)?).ok()?, number(FLAGS)?);
    let kind = if flags & KERNEL_THREAD == 0 { TaskKind::User } else { TaskKind::Kernel };
    Some((StartTask { tid: Tid(tid), process, kind, name: name.to_owned() }, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_may_contain_parentheses() {
        let (task, parent) = parse(7, 6, "7 (a) R 1 (b) S 2 0 0 0 -1 4194304 0").expect("a task");
        assert_eq!((task.tid, task.process, task.name.as_str()), (Tid(7), 6, "a) R 1 (b"));
        assert_eq!((task.kind, parent), (TaskKind::User, 2));
        assert_eq!(
            parse(2, 2, "2 (kthreadd) S 0 0 0 0 -1 2129984 0").unwrap().0.kind,
            TaskKind::Kernel
        );
        assert!(parse(7, 7, "").is_none() && parse(7, 7, "7 (a) R").is_none());
    }

    #[test]
    fn own_thread_and_its_ancestors_are_listed() {
        let mut tasks = Tasks::default();
        tasks.update().expect("tasks");
        let process = std::process::id();
        let own = BTreeSet::from([process]);
        let task = tasks.threads(&own).find(|task| task.tid.0 == process).expect("a task");
        assert_eq!(task.kind, TaskKind::User);
        let parent = std::os::unix::process::parent_id();
        assert!(tasks.with_descendants(&[parent]).contains(&process));
        assert!(!tasks.with_descendants(&[process]).contains(&parent));
        assert!(tasks.programs().any(|program| program == process));
    }
}
