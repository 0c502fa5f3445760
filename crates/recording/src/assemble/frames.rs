//! The numbers of the calls of call stacks.

use std::collections::HashMap;

use super::shorten;
use crate::format::{FRAMES_MAX, NAME_BYTES_MAX};
use crate::record::{Event, Frame, FrameId};

/// The calls that the recording contains, by their callers.
#[derive(Debug, Default)]
pub(super) struct Frames {
    numbers: HashMap<(FrameId, Frame), FrameId>,
}

impl Frames {
    /// Returns the number of a stack, whose innermost call comes first, and the introductions of
    /// the calls that are new. If the numbers are used up, the stack lacks its innermost calls.
    pub(super) fn number(&mut self, stack: Vec<Frame>) -> (Vec<Event>, FrameId) {
        let mut introductions = Vec::new();
        let mut caller = FrameId::NONE;
        for mut function in stack.into_iter().rev() {
            function.function.truncate(shorten(&function.function, NAME_BYTES_MAX).len());
            function.file.truncate(shorten(&function.file, NAME_BYTES_MAX).len());
            let next = FrameId(self.numbers.len() as u32 + 1);
            let key = (caller, function);
            if let Some(number) = self.numbers.get(&key) {
                caller = *number;
                continue;
            }
            if next.0 > FRAMES_MAX {
                break;
            }
            introductions.push(Event::Frame { frame: next, caller, function: key.1.clone() });
            self.numbers.insert(key, next);
            caller = next;
        }
        (introductions, caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Layer;

    fn frame(name: &str) -> Frame {
        Frame { layer: Layer::User, function: name.to_owned(), file: String::new(), line: 0 }
    }

    #[test]
    fn stacks_share_their_callers() {
        let mut frames = Frames::default();
        let stack = |names: [&str; 3]| names.map(frame).to_vec();
        let (introductions, first) = frames.number(stack(["madvise", "free", "main"]));
        assert_eq!((introductions.len(), first), (3, FrameId(3)));
        let (introductions, second) = frames.number(stack(["munmap", "free", "main"]));
        assert_eq!((introductions.len(), second), (1, FrameId(4)));
        assert!(matches!(introductions[0], Event::Frame { caller: FrameId(2), .. }));
        assert_eq!(frames.number(stack(["madvise", "free", "main"])), (vec![], first));
        assert_eq!(frames.number(vec![]), (vec![], FrameId::NONE));
    }

    #[test]
    fn long_names_are_shortened() {
        let (introductions, _) = Frames::default().number(vec![frame(&"é".repeat(200))]);
        let [Event::Frame { function, .. }] = &introductions[..] else { panic!("a frame") };
        assert_eq!(function.function.len(), NAME_BYTES_MAX - 1, "whole characters");
    }
}
