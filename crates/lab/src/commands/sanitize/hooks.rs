//! The places where a kernel gives frames to new owners.

use std::str::FromStr;

use clap::ValueEnum;
use shootdown_sanitizer::hook::{Event, Unit};

use super::error::SanitizeError;
use super::symbols::Symbols;
use crate::render::name_of;

/// A hook: a function of the guest, and its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    symbol: String,
    event: Event,
}

impl Hook {
    /// The function is called when all changes of this CPU have been flushed.
    pub(super) fn settled(symbol: &str) -> Self {
        Self { symbol: symbol.to_owned(), event: Event::Settle }
    }

    pub(super) fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Returns `true` if frames get new owners.
    pub(super) fn is_reuse(&self) -> bool {
        matches!(self.event, Event::Reuse(..))
    }

    /// Returns `true` if changes are settled.
    pub(super) fn is_settled(&self) -> bool {
        self.event == Event::Settle
    }

    /// The plugin's argument for the hook at this address.
    pub(super) fn argument(&self, address: u64) -> String {
        self.event.argument(address)
    }
}

impl FromStr for Hook {
    type Err = String;

    /// Reads `SYMBOL:ARGUMENT[:UNIT[:ORDER]]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (symbol, rest) = text.split_once(':').unwrap_or((text, ""));
        if symbol.is_empty() {
            return Err("it has no symbol".to_owned());
        }
        let unit = if rest.contains(':') { "" } else { ":virtual" };
        let event = Event::reuse(&format!("{rest}{unit}"), 1)?;
        Ok(Self { symbol: symbol.to_owned(), event })
    }
}

/// A kernel whose hooks are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// Linux: frames that are freed, cleared or copied to. Boot it with nokaslr
    Linux,
    /// OSTD, the framework of Asterinas, with its default allocator of frames
    Ostd,
    /// The kernel of this repository, in fault injection
    Shootdown,
    /// xv6 for RISC-V, and its relatives: kfree
    Xv6,
}

impl Preset {
    /// The hooks that a kernel with these symbols has.
    ///
    /// # Errors
    ///
    /// If it has none.
    pub(super) fn hooks_of(self, symbols: &Symbols) -> Result<Vec<Hook>, SanitizeError> {
        let has = |hook: &Hook| symbols.addresses(&hook.symbol).next().is_some();
        let mut found: Vec<Hook> = self.hooks().into_iter().filter(has).collect();
        // x86-64 without KASLR and with four levels, if `struct page` has an array of its own.
        // Linux 7.3 clears pages inline.
        let is_there = |symbol| symbols.addresses(symbol).next().is_some();
        if self == Self::Linux && is_there("entry_SYSCALL_64") && is_there("vmemmap_populate") {
            let unit = Unit::Descriptor(0xffff_ea00_0000_0000, 64);
            // Pages that go to a CPU's list, by two names, and those that go to the zone.
            let freed = [
                ("free_unref_page_commit", Event::Reuse(2, unit, Some(4))),
                ("free_frozen_page_commit", Event::Reuse(2, unit, Some(4))),
                ("__free_pages_ok", Event::Reuse(0, unit, Some(1))),
            ];
            let freed = freed.map(|(symbol, event)| Hook { symbol: symbol.to_owned(), event });
            found.extend(freed.into_iter().filter(has));
        }
        match found.is_empty() {
            true => Err(SanitizeError::NoSymbols { preset: name_of(self) }),
            false => Ok(found),
        }
    }

    /// The hooks. A kernel has some of them.
    pub(crate) fn hooks(self) -> Vec<Hook> {
        let of = |symbol: &str, event| Hook { symbol: symbol.to_owned(), event };
        let reuse = |symbol, unit| of(symbol, Event::Reuse(0, unit, None));
        match self {
            Self::Linux => [
                "clear_page_rep",
                "clear_page_orig",
                "clear_page_erms",
                "clear_page",
                "__pi_clear_page",
                "copy_page",
                "__pi_copy_page",
            ]
            .map(|symbol| reuse(symbol, Unit::Virtual))
            .to_vec(),
            // Of a segment, the first frame.
            Self::Ostd => vec![of(
                "<osdk_frame_allocator::FrameAllocator as \
                 ostd::mm::frame::allocator::GlobalFrameAllocator>::dealloc",
                Event::Reuse(1, Unit::Physical, None),
            )],
            Self::Xv6 => vec![reuse("kfree", Unit::Physical)],
            Self::Shootdown => vec![
                reuse("shootdown_freed", Unit::Physical),
                Hook::settled("shootdown_settled"),
                of("shootdown_trial", Event::Mark),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_on_x86_has_hooks_where_pages_are_freed() {
        let hooks = |names: &[&str]| {
            let line = |(at, name): (usize, &&str)| format!("ffffffff8100{at:04x} T {name}\n");
            let text: String = names.iter().enumerate().map(line).collect();
            let symbols = Symbols::of_kallsyms(&text).expect("symbols");
            Preset::Linux.hooks_of(&symbols).expect("hooks").len()
        };
        const X86: [&str; 2] = ["entry_SYSCALL_64", "vmemmap_populate"];
        const COMMON: [&str; 3] = ["copy_page", "free_frozen_page_commit", "__free_pages_ok"];
        assert_eq!(hooks(&[&COMMON[..], &X86].concat()), 3, "as Linux 7.3");
        assert_eq!(hooks(&[&COMMON[..], &X86[..1]].concat()), 1, "without an array of pages");
        assert_eq!(hooks(&[&COMMON[..], &X86[1..]].concat()), 1, "another architecture");
    }

    #[test]
    fn hook_becomes_argument_of_plugin() {
        let argument = |text: &str| text.parse::<Hook>().map(|hook| hook.argument(16));
        assert_eq!(argument("f:1").as_deref(), Ok("reuse=0x10:0:virtual"));
        let with_order = argument("free_pages:1:descriptor/0xffffea0000000000/64:2");
        let expected = "reuse=0x10:0:descriptor/0xffffea0000000000/64:1";
        assert_eq!(with_order.as_deref(), Ok(expected));
        for wrong in ["f", ":1", "f:0", "f:9", "f:1:page", "f:1:descriptor/0/64", "f:1:number:x"] {
            assert!(argument(wrong).is_err(), "{wrong}");
        }
    }
}
