//! The places where a kernel gives frames to new owners.

use std::str::FromStr;

use clap::ValueEnum;

/// A hook: a function of the guest, and its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    symbol: String,
    meaning: Meaning,
}

/// The meaning of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    /// A frame gets a new owner; the text that follows the address in the plugin's argument.
    Reuse(String),
    /// The changes of this CPU are settled.
    Settled,
    /// Later reports have the number in the first argument.
    Mark,
}

impl Hook {
    /// The function is called when all changes of this CPU have been flushed.
    pub(super) fn settled(symbol: &str) -> Self {
        Self { symbol: symbol.to_owned(), meaning: Meaning::Settled }
    }

    pub(super) fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Returns `true` if frames get new owners.
    pub(super) fn is_reuse(&self) -> bool {
        matches!(self.meaning, Meaning::Reuse(_))
    }

    /// The plugin's argument for the hook at this address.
    pub(super) fn argument(&self, address: u64) -> String {
        match &self.meaning {
            Meaning::Reuse(rest) => format!("reuse={address:#x}:{rest}"),
            Meaning::Settled => format!("settle={address:#x}"),
            Meaning::Mark => format!("mark={address:#x}"),
        }
    }
}

impl FromStr for Hook {
    type Err = String;

    /// Reads `SYMBOL:ARGUMENT[:UNIT[:ORDER]]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let symbol = parts.next().filter(|symbol| !symbol.is_empty());
        let symbol = symbol.ok_or("it has no symbol")?.to_owned();
        let argument = |part: Option<&str>| {
            let number = part.and_then(|part| part.parse::<u32>().ok());
            number.filter(|number| (1..=8).contains(number)).map(|number| number - 1)
        };
        let number = argument(parts.next()).ok_or("the argument is a number from 1 to 8")?;
        let unit = parts.next().unwrap_or("virtual");
        let is_unit = match unit.split('/').collect::<Vec<_>>()[..] {
            ["virtual" | "physical" | "number"] => true,
            ["descriptor", base, bytes] => [base, bytes].iter().all(|number| {
                let digits = number.strip_prefix("0x");
                digits
                    .map_or(number.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
                    .is_some_and(|number| number != 0)
            }),
            _ => false,
        };
        if !is_unit {
            return Err("the unit is virtual, physical, number or descriptor/BASE/BYTES".to_owned());
        }
        let order = match parts.next() {
            None => String::new(),
            order => {
                let order = argument(order).ok_or("the order is the number of an argument")?;
                format!(":{order}")
            }
        };
        if parts.next().is_some() {
            return Err("it has more than four parts".to_owned());
        }
        Ok(Self { symbol, meaning: Meaning::Reuse(format!("{number}:{unit}{order}")) })
    }
}

/// A kernel whose hooks are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// Linux: frames that are cleared or copied to. Boot it with nokaslr
    Linux,
    /// The kernel of this repository, in fault injection
    Shootdown,
    /// xv6 for RISC-V, and its relatives: kfree
    Xv6,
}

impl Preset {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Shootdown => "shootdown",
            Self::Xv6 => "xv6",
        }
    }

    /// The hooks. A kernel has some of them.
    pub(crate) fn hooks(self) -> Vec<Hook> {
        let reuse = |symbol: &str, rest: &str| Hook {
            symbol: symbol.to_owned(),
            meaning: Meaning::Reuse(rest.to_owned()),
        };
        let to = |symbol: &&str| reuse(symbol, "0:virtual");
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
            .iter()
            .map(to)
            .collect(),
            Self::Xv6 => vec![reuse("kfree", "0:physical")],
            Self::Shootdown => {
                let mark = Hook { symbol: "shootdown_trial".to_owned(), meaning: Meaning::Mark };
                let settled = Hook::settled("shootdown_settled");
                vec![reuse("shootdown_freed", "0:physical"), settled, mark]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
