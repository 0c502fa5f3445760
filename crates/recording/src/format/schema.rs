//! The kinds of records, as the header of a file describes them. The description lets a reader skip
//! kinds that it does not know, and lets a program without a list of kinds print every record.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::fields::Encoding;
use super::records::kinds;
use super::rules::Invalid;

/// Number of possible kinds: a kind's number has seven bits.
const KINDS: usize = 128;

/// A kind of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kind {
    pub(super) number: u8,
    pub(super) name: Cow<'static, str>,
    pub(super) fields: Vec<Field>,
}

/// A field of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Field {
    pub(super) name: Cow<'static, str>,
    pub(super) encoding: Encoding,
}

/// The treatment of a kind by a reader.
#[derive(Clone, Debug)]
pub(super) enum Treatment {
    /// The file does not describe the kind.
    Refuse,
    /// The reader knows the kind.
    Decode,
    /// The reader does not know the kind, and skips its fields.
    Skip(Vec<Field>),
}

/// Returns the treatment of each kind, indexed by its number, for a file with these kinds.
pub(super) fn treatments(of_file: Vec<Kind>) -> Result<Vec<Treatment>, Invalid> {
    let known = kinds();
    let mut treatments = vec![Treatment::Refuse; KINDS];
    for kind in of_file {
        let refused = Err(Invalid::Schema(kind.number));
        match treatments.get_mut(usize::from(kind.number)) {
            Some(treatment @ Treatment::Refuse) => {
                *treatment = match known.get(usize::from(kind.number)) {
                    Some(known) if *known == kind => Treatment::Decode,
                    Some(_) => return refused,
                    None => Treatment::Skip(kind.fields),
                };
            }
            _ => return refused,
        }
    }
    Ok(treatments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_and_have_unique_names() {
        let kinds = kinds();
        assert!(kinds.iter().map(|kind| usize::from(kind.number)).eq(0..kinds.len()));
        let mut names: Vec<_> = kinds.iter().map(|kind| &*kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), kinds.len());
    }

    #[test]
    fn altered_or_duplicate_kind_is_refused() {
        let refused = |change: fn(&mut Vec<Kind>)| {
            let mut kinds = kinds();
            change(&mut kinds);
            treatments(kinds).err()
        };
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|kinds| kinds.reverse()), None);
        assert_eq!(refused(|kinds| drop(kinds.remove(4))), None);
        assert_eq!(refused(|kinds| kinds.push(kinds[3].clone())), Some(Invalid::Schema(3)));
        assert_eq!(refused(|kinds| kinds[2].fields.reverse()), Some(Invalid::Schema(2)));
        assert_eq!(refused(|kinds| kinds[5].number = 128), Some(Invalid::Schema(128)));
    }
}
