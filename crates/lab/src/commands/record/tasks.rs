//! The tasks that exist at the start of a recording, read from /proc.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use shootdown_recording::assemble::{StartTask, TaskKind};
use shootdown_recording::raw::Tid;

use super::error::RecordError;

/// Linux's `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Index of the flags in `stat`, counted from the field after the name.
const FLAGS: usize = 6;

/// All tasks by their numbers.
pub(super) type Tasks = BTreeMap<u32, StartTask>;

/// Adds the tasks that live now to `tasks`.
///
/// # Errors
///
/// If there is no /proc. A task that ends during the call is left out.
pub(super) fn add_tasks(tasks: &mut Tasks) -> Result<(), RecordError> {
    let proc = Path::new("/proc");
    let processes = fs::read_dir(proc).map_err(|error| RecordError::kernel(proc, error))?;
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    for entry in processes.flatten() {
        let Some(process) = number(&entry) else { continue };
        let threads = fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten();
        for thread in threads {
            let Some(tid) = number(&thread) else { continue };
            let stat = fs::read(thread.path().join("stat")).unwrap_or_default();
            if let Some(task) = parse(tid, process, &String::from_utf8_lossy(&stat)) {
                tasks.entry(tid).or_insert(task);
            }
        }
    }
    Ok(())
}

/// Parses `stat`: a number, the name in parentheses, which may contain any character, and more
/// numbers.
fn parse(tid: u32, process: u32, stat: &str) -> Option<StartTask> {
    let (name, numbers) = stat.split_once('(')?.1.rsplit_once(')')?;
    let flags: u64 = numbers.split_whitespace().nth(FLAGS)?.parse().ok()?;
    let kind = if flags & KERNEL_THREAD == 0 { TaskKind::User } else { TaskKind::Kernel };
    Some(StartTask { tid: Tid(tid), process, kind, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_may_contain_parentheses() {
        let task = parse(7, 6, "7 (a) R 1 (b) S 2 0 0 0 -1 4194304 0").expect("a task");
        assert_eq!((task.tid, task.process, task.name.as_str()), (Tid(7), 6, "a) R 1 (b"));
        assert_eq!(task.kind, TaskKind::User);
        assert_eq!(
            parse(2, 2, "2 (kthreadd) S 0 0 0 0 -1 2129984 0").unwrap().kind,
            TaskKind::Kernel
        );
        assert!(parse(7, 7, "").is_none() && parse(7, 7, "7 (a) R").is_none());
    }

    #[test]
    fn own_thread_is_listed() {
        let mut tasks = Tasks::new();
        add_tasks(&mut tasks).expect("tasks");
        let task = &tasks[&std::process::id()];
        assert_eq!((task.process, task.kind), (std::process::id(), TaskKind::User));
    }
}
