//! Records the history of a run, if one is wanted.

use super::HostileMachine;
use crate::hardware::Entry;
use crate::history::{Line, LineKind};

impl HostileMachine {
    /// Records an event of the calling CPU, if the run records its history.
    pub fn record(&self, text: impl FnOnce() -> String) {
        self.record_as(LineKind::Event, text);
    }

    /// Records the operation that the calling CPU begins.
    pub fn record_op(&self, text: impl FnOnce() -> String) {
        self.record_as(LineKind::Operation, text);
    }

    pub(crate) fn record_as(&self, kind: LineKind, text: impl FnOnce() -> String) {
        self.add_line(self.cpu(), kind, text);
    }

    /// Records a write to a word. Writes to page tables are events. `text` gets the name of the
    /// word and a function that displays a value.
    pub(crate) fn record_word(
        &self,
        word: u32,
        text: impl FnOnce(String, &dyn Fn(u64) -> String) -> String,
    ) {
        let name = || self.memory.borrow().name_of(word);
        self.record_as(self.kind_of_access(word), || {
            text(name(), &|value| self.display_value(word, value))
        });
    }

    /// Displays the value of a word: as a page-table entry, as the name of an object with the flags
    /// in the low bits of its address, or as a number.
    pub(crate) fn display_value(&self, word: u32, value: u64) -> String {
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

    pub(crate) fn add_line(&self, cpu: usize, kind: LineKind, text: impl FnOnce() -> String) {
        // The setup before the run is not part of its history.
        if let (true, Some(lines)) = (self.has_begun.get(), &mut *self.lines.borrow_mut()) {
            lines.push(Line { cpu, text: text(), kind });
        }
    }

    /// Records the stale entries that each CPU may hold, where they have changed.
    pub(crate) fn record_stale_entries(&self) {
        if self.lines.borrow().is_none() {
            return;
        }
        let mut last = self.stale_text.borrow_mut();
        last.resize(self.cpus.len(), String::new());
        for (cpu, last) in last.iter_mut().enumerate() {
            let stale = self.hardware.borrow().describe_stale(&self.memory.borrow(), cpu);
            if *last != stale {
                let text =
                    if stale.is_empty() { "no stale entry".to_owned() } else { stale.clone() };
                self.add_line(cpu, LineKind::StaleEntries, || format!("may hold {text}"));
                *last = stale;
            }
        }
    }
}
