//! The plugin's arguments, which `shootdown sanitize` writes: `name=value`.

use crate::hook::{Event, number};
use crate::report::Mode;
use crate::sanitizer;

/// A hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hook {
    /// The address in the guest.
    pub(super) address: u64,
    pub(super) event: Event,
}

/// The arguments.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// The file for the lines of output.
    pub(super) out: Option<String>,
    pub(super) hooks: Vec<Hook>,
    pub(super) core: sanitizer::Options,
}

impl Options {
    /// Reads the arguments, or returns the one that is wrong.
    pub(super) fn parse<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<Self, &'a str> {
        let core = sanitizer::Options { modes: Vec::new(), limit: u64::MAX, settles: false };
        let mut options = Self { out: None, hooks: Vec::new(), core };
        for argument in arguments {
            options.read(argument).ok_or(argument)?;
        }
        if options.core.modes.is_empty() {
            options.core.modes = Mode::OF_USED.to_vec();
        }
        options.core.settles = options.hooks.iter().any(|hook| hook.event == Event::Settle);
        Ok(options)
    }

    fn read(&mut self, argument: &str) -> Option<()> {
        let (name, value) = argument.split_once('=')?;
        let hook = |event| Some(Hook { address: number(value)?, event });
        match name {
            "out" => self.out = Some(value.to_owned()),
            "limit" => self.core.limit = number(value)?,
            "mode" => {
                let mode = Mode::ALL.into_iter().find(|mode| mode.name() == value)?;
                self.core.modes.push(mode);
            }
            "reuse" => {
                let (address, rest) = value.split_once(':')?;
                let event = Event::reuse(rest, 0).ok()?;
                self.hooks.push(Hook { address: number(address)?, event });
            }
            "settle" => self.hooks.push(hook(Event::Settle)?),
            "mark" => self.hooks.push(hook(Event::Mark)?),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::Unit;

    #[test]
    fn arguments_of_hooks_are_read() {
        let arguments = [
            "out=/x",
            "mode=tables",
            "reuse=0x10:0:virtual",
            "reuse=0x20:1:descriptor/0x1000/64:2",
            "settle=48",
        ];
        let options = Options::parse(arguments.into_iter()).expect("all are right");
        assert_eq!(options.core.modes, [Mode::Tables]);
        let events: Vec<_> = options.hooks.iter().map(|hook| (hook.address, hook.event)).collect();
        let descriptor = Unit::Descriptor(0x1000, 64);
        assert_eq!(events[0], (16, Event::Reuse(0, Unit::Virtual, None)));
        assert_eq!(events[1], (32, Event::Reuse(1, descriptor, Some(2))));
        assert_eq!(events[2], (48, Event::Settle));
        assert!(options.core.settles);
    }

    #[test]
    fn wrong_argument_is_named() {
        let wrong = ["reuse=0x10:0", "reuse=1:0:descriptor/1/0", "mode=none", "settle=x", "on"];
        for argument in wrong {
            assert_eq!(Options::parse([argument].into_iter()).unwrap_err(), argument);
        }
    }
}
