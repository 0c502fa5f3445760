//! The designs that can be checked, by name.

use std::fmt;
use std::str::FromStr;

use shootdown::Rule;

use crate::zoo::{Bug, Variant};

/// A design to check.
#[derive(Clone, Copy, Debug)]
pub enum Design {
    /// The engine, or the engine without one of its rules. Removing a rule shows that its absence
    /// is detected.
    Engine(Option<Rule>),
    /// A bug of the zoo, or its fixed variant.
    Bug(&'static Bug, Variant),
    /// All bugs of the zoo.
    Zoo,
}

/// The name of a design that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no design `{}`", .0.escape_debug())]
pub struct UnknownDesign(pub String);

impl Design {
    /// Returns every design except [`Design::Zoo`].
    pub fn every() -> impl Iterator<Item = Self> {
        let engines = [None].into_iter().chain(Rule::ALL.iter().copied().map(Some));
        let both = |bug| [Self::Bug(bug, Variant::Faulty), Self::Bug(bug, Variant::Fixed)];
        engines.map(Self::Engine).chain(Bug::all().flat_map(both))
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(None) => f.write_str("shootdown"),
            Self::Engine(Some(rule)) => write!(f, "without{}", hyphenated(&format!("{rule:?}"))),
            Self::Bug(bug, Variant::Faulty) => f.write_str(bug.name),
            Self::Bug(bug, Variant::Fixed) => write!(f, "{}-fixed", bug.name),
            Self::Zoo => f.write_str("zoo"),
        }
    }
}

impl FromStr for Design {
    type Err = UnknownDesign;

    fn from_str(name: &str) -> Result<Self, UnknownDesign> {
        let mut all = Self::every().chain([Self::Zoo]);
        all.find(|design| design.to_string() == name).ok_or_else(|| UnknownDesign(name.to_owned()))
    }
}

/// Converts capital letters to lower case, each preceded by a hyphen.
fn hyphenated(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_design_parses_from_its_unique_name() {
        for design in Design::every().chain([Design::Zoo]) {
            let name = design.to_string();
            assert_eq!(name.parse::<Design>().unwrap().to_string(), name);
            assert!(name.chars().all(|it| it.is_ascii_lowercase() || "-0123456789".contains(it)));
        }
        let mut names: Vec<_> = Design::every().map(|design| design.to_string()).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(Design::Engine(Some(Rule::FlushFence)).to_string(), "without-flush-fence");
        assert!("without-a-rule".parse::<Design>().is_err());
    }
}
