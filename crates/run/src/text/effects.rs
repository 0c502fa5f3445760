//! Statements and declarations that would do nothing. They are errors, because a workload that
//! contains one is not the workload that its author meant.

use super::error::TextError;
use super::parser::Parsed;
use super::syntax::{Change, Code, Kind, Map, Step, Thread};
use crate::settings::Supply;

/// Checks that the text has no statement or declaration that would do nothing.
pub(super) fn check(code: &Code) -> Parsed<()> {
    check_memory(code)?;
    check_files(code)?;
    check_pipes(code)?;
    code.threads.iter().try_for_each(|thread| check_joins(code, thread))
}

/// Checks that pages are moved and paged out, and nodes declared, only where the memory manager
/// records the places where each page is mapped. Without that record it would find no page.
fn check_memory(code: &Code) -> Parsed<()> {
    let is_managed = code.memory.as_ref().is_some_and(|memory| memory.supply != Supply::Enough);
    for step in code.threads.iter().flat_map(|thread| &thread.steps) {
        let (cause, remedy) = match &step.kind {
            Kind::Change(Change::PageOut | Change::Sync, _) if !is_managed => (
                "pages can be written out only if memory is managed",
                "add `memory SIZE reclaim` to the declarations",
            ),
            Kind::Truncate(..) if !is_managed => (
                "files can be truncated only if memory is managed",
                "add `memory SIZE reclaim` to the declarations",
            ),
            Kind::Change(Change::Move(_), _) if !is_managed || code.nodes.is_none() => (
                "pages can be moved only if memory is managed, and has nodes",
                "add `memory SIZE reclaim` and `nodes sockets` to the declarations",
            ),
            _ => continue,
        };
        return Err(TextError::new(step.at, cause, remedy));
    }
    match code.nodes {
        Some((at, _)) if !is_managed => Err(TextError::new(
            at,
            "`nodes` has no effect on memory that is not reclaimed",
            "add `memory SIZE reclaim`, or remove the line",
        )),
        _ => Ok(()),
    }
}

/// Checks that a thread maps each file that is truncated.
fn check_files(code: &Code) -> Parsed<()> {
    let steps = || code.threads.iter().flat_map(|thread| &thread.steps);
    let is_mapped = |name| {
        let maps = |step: &Step| match &step.kind {
            Kind::Map(Map { file: Some((file, _)), .. }) => file.name == name,
            _ => false,
        };
        steps().any(maps)
    };
    for step in steps() {
        if let Kind::Truncate(file, _) = &step.kind
            && !is_mapped(file.name)
        {
            let name = &code.names.files[file.name];
            let remedy = format!("add `map AREA SIZE shared {name}`, or use the name of a file");
            return Err(TextError::new(
                step.at,
                format!("no thread maps the file `{name}`"),
                remedy,
            ));
        }
    }
    Ok(())
}

/// Checks that the text declares the buffer of each pipe.
fn check_pipes(code: &Code) -> Parsed<()> {
    for step in code.threads.iter().flat_map(|thread| &thread.steps) {
        let Kind::UsePipe(pipe, _) = &step.kind else { continue };
        if code.pipes.iter().all(|(name, _)| *name != pipe.name) {
            let name = &code.names.pipes[pipe.name];
            let remedy = format!("add `pipe {name} MESSAGES` to the declarations, or `socket`");
            return Err(TextError::new(step.at, format!("there is no pipe `{name}`"), remedy));
        }
    }
    Ok(())
}

/// Checks that a thread waits only for threads that it may have started. It would not wait for
/// others.
fn check_joins(code: &Code, thread: &Thread) -> Parsed<()> {
    let starts = |wanted: Option<usize>| {
        let is_wanted = |step: &Step| match step.kind {
            Kind::Start { thread, .. } => wanted.is_none_or(|wanted| wanted == thread),
            _ => false,
        };
        thread.steps.iter().any(is_wanted)
    };
    for step in &thread.steps {
        let of = match step.kind {
            Kind::Join(wanted) if starts(wanted) => continue,
            Kind::Join(Some(wanted)) => format!("the thread `{}`", code.threads[wanted].name),
            Kind::Join(None) => "a thread".to_owned(),
            _ => continue,
        };
        return Err(TextError::new(
            step.at,
            format!("`{}` does not start {of}, and `join` waits only for its own", thread.name),
            "join in the thread that has the `spawn` or `fork`, or use a `barrier`",
        ));
    }
    Ok(())
}
