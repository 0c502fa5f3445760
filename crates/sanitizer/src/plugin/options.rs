//! The plugin's arguments, which `shootdown sanitize` writes: `name=value`.

use crate::report::Mode;
use crate::sanitizer;

/// What a hook's argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A physical address.
    Physical,
    /// The number of a frame.
    Number,
    /// An address that the kernel maps to the frame.
    Virtual,
    /// The address of the frame's descriptor, in an array at this address of elements of this size.
    Descriptor(u64, u64),
}

/// What happens where a hook is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A frame gets a new owner: the number of the argument (from 0 on), its unit, and the number
    /// of the argument with the logarithm of the number of frames.
    Reuse(usize, Unit, Option<usize>),
    /// The changes of page tables by this CPU are settled.
    Settle,
    /// Later reports have the number in the first argument.
    Mark,
}

impl Event {
    /// Number of the first arguments of which it uses one.
    pub(super) fn arguments(self) -> usize {
        match self {
            Self::Reuse(number, _, order) => number.max(order.unwrap_or(0)) + 1,
            Self::Settle => 0,
            Self::Mark => 1,
        }
    }
}

/// A hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `ADDRESS:ARGUMENT:UNIT[:ORDER]`. The unit is `physical`, `number`, `virtual` or
/// `descriptor/BASE/BYTES`.
fn reuse(text: &str) -> Option<Hook> {
    let mut parts = text.split(':');
    let address = number(parts.next()?)?;
    let argument = number(parts.next()?)?;
    let mut words = parts.next()?.split('/');
    let unit = match words.next()? {
        "physical" => Unit::Physical,
        "number" => Unit::Number,
        "virtual" => Unit::Virtual,
        "descriptor" => {
            let bytes = |bytes: &u64| *bytes != 0;
            Unit::Descriptor(number(words.next()?)?, number(words.next()?).filter(bytes)?)
        }
        _ => return None,
    };
    let order = parts.next().map(number);
    let order = match order {
        Some(None) => return None,
        Some(Some(order)) => Some(order as usize),
        None => None,
    };
    Some(Hook { address, event: Event::Reuse(argument as usize, unit, order) })
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
            options.core.modes = Mode::ALL.to_vec();
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
            "reuse" => self.hooks.push(reuse(value)?),
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
