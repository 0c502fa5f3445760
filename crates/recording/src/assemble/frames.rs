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

    /// Returns the names of calls that were recorded without them.
    pub(super) fn named(&self, names: Vec<(Frame, Frame)>) -> Vec<Event> {
        let names: HashMap<Frame, Frame> = names.into_iter().collect();
        let named = self.numbers.iter().filter_map(|((_, known), &frame)| {
            let Frame { function, file, .. } = names.get(known)?;
            let [function, file] = [function, file].map(|it| shorten(it, NAME_BYTES_MAX).into());
            Some((frame, Event::Name { frame, function, file }))
        });
        let mut named: Vec<_> = named.collect();
        named.sort_unstable_by_key(|(frame, _)| *frame);
        named.into_iter().map(|(_, event)| event).collect()
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
    fn every_call_of_a_function_is_named() {
        let mut frames = Frames::default();
        frames.number(vec![frame("[0x10]"), frame("main")]);
        frames.number(vec![frame("[0x10]"), frame("start")]);
        let named = frames.named(vec![
            (frame("[0x10]"), Frame { file: "a".repeat(NAME_BYTES_MAX + 1), ..frame("run") }),
            (frame("[0x20]"), frame("never")),
        ]);
        let name = |number| Event::Name {
            frame: FrameId(number),
            function: "run".to_owned(),
            file: "a".repeat(NAME_BYTES_MAX),
        };
        assert_eq!(named, [name(2), name(4)]);
    }

    #[test]
    fn long_names_are_shortened() {
        let (introductions, _) = Frames::default().number(vec![frame(&"é".repeat(200))]);
        let [Event::Frame { function, .. }] = &introductions[..] else { panic!("a frame") };
        assert_eq!(function.function.len(), NAME_BYTES_MAX - 1, "whole characters");
    }
}
