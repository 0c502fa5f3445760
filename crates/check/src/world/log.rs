//! Writes the history of a run, if there is to be one.

use super::World;
use crate::hardware::Entry;
use crate::history::{Line, LineKind};

impl World {
    /// Writes a line, if lines are written.
    pub fn say(&self, text: impl FnOnce() -> String) {
        self.say_as(LineKind::Event, text);
    }

    /// The same of what the calling CPU is about to do.
    pub fn say_op(&self, text: impl FnOnce() -> String) {
        self.say_as(LineKind::Operation, text);
    }

    pub(crate) fn say_as(&self, kind: LineKind, text: impl FnOnce() -> String) {
        self.write_line(self.cpu(), kind, text);
    }

    /// The same of a write to a word, of which those to page tables are events. The text has its
    /// name, and how to show a value.
    pub(crate) fn say_word(
        &self,
        word: u32,
        text: impl FnOnce(String, &dyn Fn(u64) -> String) -> String,
    ) {
        let name = || self.memory.borrow().name_of(word);
        self.say_as(self.kind_of_access(word), || text(name(), &|value| self.shown(word, value)));
    }

    /// The value of a word: an entry of a page table, the name of an object with the flags in the
    /// low bits of its address, or a number.
    pub(crate) fn shown(&self, word: u32, value: u64) -> String {
        /// Objects are aligned to more than this.
        const FLAGS: u64 = 0xf;
        if self.is_of_page_tables(word) {
            return Entry(value).to_string();
        }
        let objects = self.objects.borrow();
        match objects.iter().find(|(address, _)| *address == value & !FLAGS) {
            Some((_, name)) if value & FLAGS == 0 => name.clone(),
            Some((_, name)) => format!("{name} + {:#x}", value & FLAGS),
            None => format!("{value:#x}"),
        }
    }

    pub(crate) fn kind_of_access(&self, word: u32) -> LineKind {
        if self.is_of_page_tables(word) { LineKind::Event } else { LineKind::Access }
    }

    pub(crate) fn write_line(&self, cpu: usize, kind: LineKind, text: impl FnOnce() -> String) {
        // What happens before the run begins is no part of it.
        if let (true, Some(lines)) = (self.has_begun.get(), &mut *self.lines.borrow_mut()) {
            lines.push(Line { cpu, text: text(), kind });
        }
    }

    /// Writes what CPUs may hold that is old, where that is not what it was.
    pub(crate) fn write_what_is_held(&self) {
        if self.lines.borrow().is_none() {
            return;
        }
        let mut last = self.held.borrow_mut();
        last.resize(self.cpu_count(), String::new());
        for (cpu, last) in last.iter_mut().enumerate() {
            let held = self.hardware.borrow().old(&self.memory.borrow(), cpu);
            if *last != held {
                let text = if held.is_empty() { "nothing old".to_owned() } else { held.clone() };
                self.write_line(cpu, LineKind::Holds, || format!("may hold {text}"));
                *last = held;
            }
        }
    }
}
