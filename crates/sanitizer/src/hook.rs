//! Hooks: functions of the guest whose calls are events. The command reads them from its user and
//! writes them for the plugin.

use std::fmt::Display;

/// The meaning of a hook's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A physical address.
    Physical,
    /// The number of a frame.
    Number,
    /// An address that the kernel maps to the frame.
    Virtual,
    /// The address of the frame's descriptor, in an array at this address of elements of this size.
    Descriptor(u64, u64),
}

/// The event that a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame gets a new owner: the number of the argument (from 0 on), its unit, and the number
    /// of the argument with the logarithm of the number of frames.
    Reuse(usize, Unit, Option<usize>),
    /// The changes of page tables by this CPU are settled.
    Settle,
    /// Later reports have the number in the first argument.
    Mark,
}

/// Reads a number, which may be hexadecimal.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Event {
    /// Reads `ARGUMENT:UNIT[:ORDER]`, with eight arguments that are numbered from `first` on.
    ///
    /// # Errors
    ///
    /// If a part is wrong: which one.
    pub fn reuse(text: &str, first: usize) -> Result<Self, &'static str> {
        let argument = |part: &str| {
            let number = part.parse::<usize>().ok()?.checked_sub(first)?;
            (number < 8).then_some(number)
        };
        let mut parts = text.split(':');
        let place =
            parts.next().and_then(argument).ok_or("the argument is a number from 1 to 8")?;
        let unit = match parts.next().unwrap_or("").split('/').collect::<Vec<_>>()[..] {
            ["physical"] => Some(Unit::Physical),
            ["number"] => Some(Unit::Number),
            ["virtual"] => Some(Unit::Virtual),
            ["descriptor", base, bytes] => number(base)
                .zip(number(bytes))
                .filter(|(base, bytes)| *base != 0 && *bytes != 0)
                .map(|(base, bytes)| Unit::Descriptor(base, bytes)),
            _ => None,
        };
        let unit = unit.ok_or("the unit is virtual, physical, number or descriptor/BASE/BYTES")?;
        let order = parts.next().map(|part| argument(part).ok_or("the order is an argument"));
        let order = order.transpose()?;
        parts.next().map_or(Ok(Self::Reuse(place, unit, order)), |_| Err("it has too many parts"))
    }

    /// The plugin's argument for the event at this address.
    pub fn argument(self, address: u64) -> String {
        match self {
            Self::Settle => format!("settle={address:#x}"),
            Self::Mark => format!("mark={address:#x}"),
            Self::Reuse(place, unit, order) => {
                let order = order.map_or(String::new(), |order| format!(":{order}"));
                let unit: &dyn Display = match unit {
                    Unit::Physical => &"physical",
                    Unit::Number => &"number",
                    Unit::Virtual => &"virtual",
                    Unit::Descriptor(base, bytes) => &format!("descriptor/{base:#x}/{bytes}"),
                };
                format!("reuse={address:#x}:{place}:{unit}{order}")
            }
        }
    }

    /// Number of the first arguments of a call of which it uses one.
    pub(crate) fn arguments(self) -> usize {
        match self {
            Self::Reuse(place, _, order) => place.max(order.unwrap_or(0)) + 1,
            Self::Settle => 0,
            Self::Mark => 1,
        }
    }
}
