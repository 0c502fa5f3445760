//! Which words matter to more than one CPU: those that several use, and some of them write.
//!
//! An access to any other word is no step, for nobody could tell whether it came before or after
//! what others did: so far fewer schedules have to be looked at, and none is lost. That is known
//! only afterwards. A search takes no word to be shared at first, and begins anew whenever one
//! turns out to be; when it has gone through everything without that, it has gone through
//! everything there is. (An interrupt may still come before an access, for its handler is on the
//! same CPU.)

/// How words are used.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// Whether all count as shared: nothing is left out.
    takes_all: bool,
    words: Vec<Users>,
    has_grown: bool,
}

/// Who uses a word.
#[derive(Clone, Copy, Debug, Default)]
struct Users {
    /// A bit for each CPU.
    cpus: u64,
    is_written: bool,
}

impl Users {
    const fn are_several(self) -> bool {
        self.is_written && self.cpus & self.cpus.wrapping_sub(1) != 0
    }
}

impl Sharing {
    /// Every word is taken to be shared.
    #[must_use]
    pub const fn all() -> Self {
        Self { takes_all: true, words: Vec::new(), has_grown: false }
    }

    /// A CPU uses a word. Returns whether it is shared.
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

    /// Whether more words turned out to be shared since this was last asked.
    pub(crate) fn has_grown(&mut self) -> bool {
        std::mem::take(&mut self.has_grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_shared_when_two_use_it_and_one_writes() {
        let mut sharing = Sharing::default();
        assert!(!sharing.note(3, 0, true) && !sharing.note(3, 0, false));
        assert!(!sharing.note(7, 0, false) && !sharing.note(7, 1, false));
        assert!(!sharing.has_grown());
        assert!(sharing.note(3, 1, false) && sharing.note(7, 1, true));
        assert!(sharing.has_grown() && !sharing.has_grown());
        assert!(Sharing::all().note(0, 0, false));
    }
}
