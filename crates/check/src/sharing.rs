//! Finds the words that matter to more than one CPU: those that several CPUs use and at least one
//! of them writes.
//!
//! An access to any other word is not a step, because no other CPU can observe when it happens. The
//! search then has far fewer schedules to visit and loses none. The set of shared words is only
//! known afterwards. A search therefore starts with no shared word, and restarts whenever a word
//! turns out to be shared. A search that ends without a restart has visited everything. (An
//! interrupt may still come before such an access, because its handler is on the same CPU.)

/// The uses of all words.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// All words count as shared, so every access is a step.
    takes_all: bool,
    words: Vec<Users>,
    has_grown: bool,
}

/// The users of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Users {
    /// One bit for each CPU.
    cpus: u64,
    is_written: bool,
}

impl Users {
    const fn are_several(self) -> bool {
        self.is_written && self.cpus & self.cpus.wrapping_sub(1) != 0
    }
}

impl Sharing {
    /// Treats every word as shared.
    pub const fn all() -> Self {
        Self { takes_all: true, words: Vec::new(), has_grown: false }
    }

    /// Records that a CPU uses a word. Returns `true` if the word is shared.
    pub(crate) fn note(&mut self, word: u32, cpu: usize, is_written: bool) -> bool {
        if self.takes_all {
            return true;
        }
        if self.words.len() <= word as usize {
            self.words.resize(word as usize + 1, Users::default());
        }
        let users = &mut self.words[word as usize];
        let was_shared = users.are_several();
        users.cpus |= 1 << cpu;
        users.is_written |= is_written;
        self.has_grown |= users.are_several() && !was_shared;
        users.are_several()
    }

    /// Returns `true` if more words turned out to be shared since the last call.
    pub(crate) fn has_grown(&mut self) -> bool {
        std::mem::take(&mut self.has_grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_shared_by_two_users_with_a_writer() {
        let mut sharing = Sharing::default();
        assert!(!sharing.note(3, 0, true) && !sharing.note(3, 0, false));
        assert!(!sharing.note(7, 0, false) && !sharing.note(7, 1, false));
        assert!(!sharing.has_grown());
        assert!(sharing.note(3, 1, false) && sharing.note(7, 1, true));
        assert!(sharing.has_grown() && !sharing.has_grown());
        assert!(Sharing::all().note(0, 0, false));
    }
}
