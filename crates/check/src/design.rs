//! What can be checked, by name.

use std::fmt;
use std::str::FromStr;

use shootdown::Rule;

use crate::zoo::{Bug, Variant};

/// Something to be checked.
#[derive(Clone, Copy, Debug)]
pub enum Design {
    /// The engine; without one of its rules, to see that found.
    Engine(Option<Rule>),
    /// A bug of the zoo, or its mended twin.
    Bug(&'static Bug, Variant),
    /// All of the zoo.
    Zoo,
}

/// There is no such design.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDesign(pub String);

impl Design {
    /// Every design but the whole zoo.
    pub fn every() -> impl Iterator<Item = Self> {
        let engines = [None].into_iter().chain(Rule::ALL.iter().copied().map(Some));
        let both = |bug| [Self::Bug(bug, Variant::Faulty), Self::Bug(bug, Variant::Mended)];
        engines.map(Self::Engine).chain(Bug::all().flat_map(both))
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(None) => f.write_str("shootdown"),
            Self::Engine(Some(rule)) => write!(f, "without{}", hyphenated(&format!("{rule:?}"))),
            Self::Bug(bug, Variant::Faulty) => f.write_str(bug.name),
            Self::Bug(bug, Variant::Mended) => write!(f, "{}-mended", bug.name),
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

impl fmt::Display for UnknownDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no design `{}`", self.0.escape_debug())
    }
}

impl std::error::Error for UnknownDesign {}

/// Each capital letter as a small one behind a hyphen.
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
    fn every_design_has_a_name_of_its_own_by_which_it_is_found() {
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
