//! Statements, and the text as a whole.

use shootdown_program::OnFault;
use shootdown_program::operation::{Access, Operation, Permission, ProgramId};

use super::effects;
use super::error::{Position, TextError, list};
use super::expression::Expression;
use super::lexer::{Token, Unit, tokens};
use super::parser::{NameKind, Parsed, Parser, number_of};
use super::syntax::{
    Change, Code, End, Indexed, Kind, Loop, Map, MemorySize, Parameter, Part, PipeKind, PipeSpec,
    Sharing, Step, Thread,
};
use crate::settings::Supply;

/// The declarations of a text.
const DECLARATIONS: &str =
    "`thread`, `parameter`, `memory`, `nodes`, `pipe`, `socket` or `survive_faults`";

/// The statements of a thread.
const STATEMENTS: [&str; 40] = [
    "map", "unmap", "protect", "discard", "offer", "collapse", "page_out", "sync", "move", "remap",
    "hint", "huge", "truncate", "read", "write", "segfault", "spawn", "fork", "join", "exec",
    "pin", "yield", "sleep", "compute", "syscall", "lock", "unlock", "barrier", "block", "wake",
    "send", "receive", "stop", "time", "count", "repeat", "for", "if", "choose", "let",
];

const SIZE: &[Unit] = &[Unit::Pages, Unit::Count];
const NUMBER: &[Unit] = &[Unit::Count];
const TIME: &[Unit] = &[Unit::Time];

/// Parses a text.
pub(super) fn parse(source: &str) -> Result<Code, TextError> {
    let mut parser = Parser::new(tokens(source)?);
    let mut code = Code {
        threads: Vec::new(),
        parameters: Vec::new(),
        memory: None,
        nodes: None,
        on_fault: OnFault::Fatal,
        pipes: Vec::new(),
        names: parser.names.clone(),
    };
    let mut threads: Vec<Option<Thread>> = parser.threads.iter().map(|_| None).collect();
    let mut ats = vec![Position { line: 1, column: 1 }; threads.len()];
    loop {
        parser.skip_lines();
        let at = parser.at();
        match parser.take() {
            Token::End => break,
            Token::Name("thread") => {
                let name = parser.name("a thread")?;
                let index = parser.threads.iter().position(|known| *known == name);
                let index = index.unwrap_or_default();
                if threads[index].is_some() {
                    let cause = format!("there are two threads `{name}`");
                    return Err(TextError::new(at, cause, "give one of them another name"));
                }
                let mut steps = Vec::new();
                parser.block(&mut steps)?;
                ats[index] = at;
                threads[index] = Some(Thread { name: name.to_owned(), steps });
            }
            Token::Name(word) => parser.declaration(word, at, &mut code)?,
            found => {
                let cause = format!("expected a declaration, found {found}");
                return Err(TextError::new(at, cause, format!("begin with {DECLARATIONS}")));
            }
        }
    }
    parser.check_names(&ats, &code.parameters)?;
    code.threads = threads.into_iter().flatten().collect();
    code.names = parser.names;
    effects::check(&code)?;
    Ok(code)
}

impl Parser<'_> {
    fn declaration(&mut self, word: &str, at: Position, code: &mut Code) -> Parsed<()> {
        let set_once = |is_set: bool| match is_set {
            false => Ok(()),
            true => {
                let cause = format!("`{word}` is declared twice");
                Err(TextError::new(at, cause, "remove one of the two lines"))
            }
        };
        match word {
            "parameter" => {
                let at = self.at();
                let variable = self.assigned()?;
                if self.defined.contains(&(NameKind::Variable, variable)) {
                    let cause = "the name is in use already";
                    return Err(TextError::new(at, cause, "give the parameter another name"));
                }
                self.expect("=", "give the default: `parameter workers = cpus`")?;
                let (default, unit) = self.constant(None)?;
                self.define(variable, unit);
                code.parameters.push(Parameter { at, variable, default });
            }
            "memory" => {
                set_once(code.memory.is_some())?;
                let (pages, _) = self.constant(Some(("a size", SIZE)))?;
                let supply = match () {
                    () if self.accept("reclaim") => Supply::Reclaimed,
                    () if self.accept("read_ahead") => Supply::ReclaimedReadAhead,
                    () => Supply::Enough,
                };
                code.memory = Some(MemorySize { pages, supply });
            }
            "nodes" => {
                set_once(code.nodes.is_some())?;
                code.nodes = Some((at, self.constant(Some(("a number of nodes", NUMBER)))?.0));
            }
            "pipe" | "socket" => {
                let name = self.name("a pipe or a socket")?;
                let name = number_of(&mut self.names.pipes, name);
                set_once(code.pipes.iter().any(|(known, _)| *known == name))?;
                let (messages, _) = self.constant(Some(("a number of messages", NUMBER)))?;
                let kind = if word == "pipe" { PipeKind::Pipe } else { PipeKind::Socket };
                code.pipes.push((name, PipeSpec { messages, kind }));
            }
            "survive_faults" => {
                set_once(code.on_fault == OnFault::Survived)?;
                code.on_fault = OnFault::Survived;
            }
            _ => {
                let cause = format!("`{word}` is not a declaration");
                let remedy = format!("use {DECLARATIONS}; statements are in threads");
                return Err(TextError::new(at, cause, remedy));
            }
        }
        self.end_of_statement()
    }

    /// Parses an expression that has a value before the run.
    fn constant(&mut self, of: Option<(&str, &[Unit])>) -> Parsed<(Expression, Unit)> {
        let at = self.at();
        let (expression, unit) = match of {
            None => self.any_expression()?,
            Some((what, units)) => (self.expression(what, units)?, units[0]),
        };
        if expression.is_dynamic() {
            let cause = "the value is needed before the run";
            return Err(TextError::new(at, cause, "use neither `random` nor `now` here"));
        }
        Ok((expression, unit))
    }

    /// Checks that each name that is used has a meaning, and that threads and parameters are used.
    fn check_names(&self, threads: &[Position], parameters: &[Parameter]) -> Parsed<()> {
        for used in &self.used {
            let is_defined = self.defined.contains(&(used.kind, used.name));
            let error = |cause, remedy| Err(TextError::new(used.at, cause, remedy));
            match used.kind {
                NameKind::Variable if !is_defined => {
                    let name = &self.names.variables[used.name].0;
                    let known = self.defined.iter().filter(|(kind, _)| *kind == used.kind);
                    let mut known: Vec<_> =
                        known.map(|(_, name)| self.names.variables[*name].0.as_str()).collect();
                    known.sort_unstable();
                    known.dedup();
                    return error(
                        format!("`{name}` is not a variable"),
                        format!("add `let {name} = …`, or use {}", list(known)),
                    );
                }
                NameKind::Area if !is_defined => {
                    let name = &self.names.areas[used.name];
                    return error(
                        format!("no thread maps `{name}`"),
                        format!("add `map {name} SIZE` before this line"),
                    );
                }
                _ => {}
            }
        }
        let no_main = !self.threads.contains(&"main");
        if no_main {
            let at = threads.first().copied().unwrap_or(self.at());
            let remedy = "add `thread main { … }`, which the run starts with";
            return Err(TextError::new(at, "there is no thread `main`", remedy));
        }
        for (index, name) in self.threads.iter().enumerate() {
            let is_used = |of: &super::parser::Use| of.kind == NameKind::Thread && of.name == index;
            if *name != "main" && !self.used.iter().any(is_used) {
                let remedy = format!("add `spawn {name}` or `fork {name}` to a thread");
                let cause = format!("nothing starts the thread `{name}`");
                return Err(TextError::new(threads[index], cause, remedy));
            }
        }
        let is_used = |it: &Parameter| {
            self.used.iter().any(|of| of.kind == NameKind::Variable && of.name == it.variable)
        };
        match parameters.iter().find(|parameter| !is_used(parameter)) {
            None => Ok(()),
            Some(unused) => {
                let name = &self.names.variables[unused.variable].0;
                let cause = format!("nothing uses the parameter `{name}`");
                Err(TextError::new(unused.at, cause, "use it, or remove the line"))
            }
        }
    }

    /// Parses statements between braces.
    fn block(&mut self, steps: &mut Vec<Step>) -> Parsed<()> {
        self.expect("{", "begin the block with `{`, on the same line")?;
        self.nested(|parser| {
            loop {
                parser.skip_lines();
                if parser.accept("}") {
                    return Ok(());
                }
                if parser.peek() == Token::End {
                    return parser.unexpected("`}`", "end each block with `}`");
                }
                parser.statement(steps)?;
            }
        })?;
        self.end_of_block()
    }

    /// Checks that the end of the line, another brace or `else` follows a block.
    fn end_of_block(&mut self) -> Parsed<()> {
        if self.peek() == Token::Name("else") { Ok(()) } else { self.end_of_statement() }
    }

    fn statement(&mut self, steps: &mut Vec<Step>) -> Parsed<()> {
        let at = self.at();
        let Token::Name(word) = self.peek() else {
            return self.unexpected("a statement", "begin the line with an operation");
        };
        self.take();
        if self.control(word, at, steps)? {
            return Ok(());
        }
        let kind = match self.memory(word)? {
            Some(kind) => kind,
            None => match self.thread_statement(word)? {
                Some(kind) => kind,
                None => return Err(unknown_statement(word, at)),
            },
        };
        steps.push(Step { at, kind });
        self.end_of_statement()
    }

    /// Parses the rest of a statement that contains blocks; `false` if it is another.
    fn control(&mut self, word: &str, at: Position, steps: &mut Vec<Step>) -> Parsed<bool> {
        match word {
            "repeat" if self.accept("for") => {
                let duration = self.expression("a time", TIME)?;
                let begin = steps.len();
                steps.push(Step { at, kind: Kind::LoopFor { duration, exit: 0 } });
                self.block(steps)?;
                steps.push(Step { at, kind: Kind::Next { body: begin + 1 } });
                let end = steps.len();
                let Kind::LoopFor { exit, .. } = &mut steps[begin].kind else { return Ok(true) };
                *exit = end;
            }
            "repeat" => {
                let (from, to) = (Expression::Number(0), self.expression("a number", SIZE)?);
                self.loop_over(at, Loop { variable: None, from, to, step: None, exit: 0 }, steps)?;
            }
            "for" => {
                let variable = self.assigned()?;
                self.define(variable, Unit::Any);
                self.expect("in", "write `for i in 0..8 {`")?;
                let from = self.any_expression()?.0;
                self.expect("..", "write `for i in 0..8 {`")?;
                let to = self.any_expression()?.0;
                let step = self.accept("step").then(|| self.any_expression()).transpose()?;
                let step = step.map(|(step, _)| step);
                let variable = Some(variable);
                self.loop_over(at, Loop { variable, from, to, step, exit: 0 }, steps)?;
            }
            "if" => self.condition(at, steps)?,
            "choose" => self.choice(at, steps)?,
            "time" => {
                let name = if self.is("{") { "" } else { self.name("an interval")? };
                let interval = number_of(&mut self.names.intervals, name);
                steps.push(Step { at, kind: Kind::IntervalBegins(interval) });
                self.block(steps)?;
                steps.push(Step { at, kind: Kind::IntervalEnds(interval) });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn loop_over(&mut self, at: Position, over: Loop, steps: &mut Vec<Step>) -> Parsed<()> {
        let begin = steps.len();
        steps.push(Step { at, kind: Kind::Loop(Box::new(over)) });
        self.block(steps)?;
        steps.push(Step { at, kind: Kind::Next { body: begin + 1 } });
        let end = steps.len();
        if let Kind::Loop(over) = &mut steps[begin].kind {
            over.exit = end;
        }
        Ok(())
    }

    fn condition(&mut self, at: Position, steps: &mut Vec<Step>) -> Parsed<()> {
        let condition = self.any_expression()?.0;
        let begin = steps.len();
        steps.push(Step { at, kind: Kind::Unless(condition.clone(), 0) });
        self.block(steps)?;
        let mut otherwise = steps.len();
        if self.accept("else") {
            let jump = steps.len();
            steps.push(Step { at, kind: Kind::Jump(0) });
            otherwise = steps.len();
            let else_at = self.at();
            if self.accept("if") {
                self.nested(|parser| parser.condition(else_at, steps))?;
            } else {
                self.block(steps)?;
            }
            steps[jump].kind = Kind::Jump(steps.len());
        }
        steps[begin].kind = Kind::Unless(condition, otherwise);
        Ok(())
    }

    fn choice(&mut self, at: Position, steps: &mut Vec<Step>) -> Parsed<()> {
        let remedy = "write `case WEIGHT { … }` for each choice";
        self.expect("{", "begin the choices with `{`, on the same line")?;
        let begin = steps.len();
        steps.push(Step { at, kind: Kind::Choose(Vec::new()) });
        let (mut cases, mut jumps) = (Vec::new(), Vec::new());
        loop {
            self.skip_lines();
            if self.accept("}") {
                break;
            }
            self.expect("case", remedy)?;
            let weight = self.expression("a weight", NUMBER)?;
            cases.push((weight, steps.len()));
            self.nested(|parser| parser.block(steps))?;
            jumps.push(steps.len());
            steps.push(Step { at, kind: Kind::Jump(0) });
        }
        if cases.is_empty() {
            return Err(TextError::new(at, "there is nothing to choose", remedy));
        }
        let end = steps.len();
        jumps.into_iter().for_each(|jump| steps[jump].kind = Kind::Jump(end));
        steps[begin].kind = Kind::Choose(cases);
        self.end_of_statement()
    }

    /// Parses the rest of a statement on memory; `None` if it is another.
    fn memory(&mut self, word: &str) -> Parsed<Option<Kind>> {
        Ok(Some(match word {
            "map" => self.map()?,
            "unmap" => Kind::Change(Change::Unmap, self.part()?),
            "protect" => {
                let part = self.part()?;
                let Some(permission) = self.permission() else {
                    return self.unexpected("`none`, `read` or `write`", "add the permission");
                };
                Kind::Change(Change::Protect(permission), part)
            }
            "discard" => {
                let part = self.part()?;
                let step = self.accept("step").then(|| self.expression("a number", SIZE));
                Kind::Change(step.transpose()?.map_or(Change::Discard, Change::DiscardEach), part)
            }
            "collapse" => Kind::Change(Change::Collapse, self.part()?),
            "offer" => Kind::Change(Change::Offer, self.part()?),
            "sync" => Kind::Change(Change::Sync, self.part()?),
            "page_out" => Kind::Change(Change::PageOut, self.part()?),
            "move" => {
                let part = self.part()?;
                self.expect("to", "write `move AREA to NODE`")?;
                Kind::Change(Change::Move(self.expression("a node", NUMBER)?), part)
            }
            "remap" => {
                let area = self.used_area()?;
                if self.is("[") {
                    let cause = "`remap` takes a whole area";
                    return Err(TextError::new(self.at(), cause, "leave out the pages"));
                }
                let size = (!self.is_at_end()).then(|| self.expression("a size", SIZE));
                Kind::Remap(area, size.transpose()?)
            }
            "truncate" => {
                let file = self.indexed("a file", |names| &mut names.files)?;
                Kind::Truncate(file, self.expression("a size", SIZE)?)
            }
            "huge" => Kind::Change(Change::Huge, self.part()?),
            "hint" => Kind::Change(Change::Hint, self.part()?),
            "segfault" => Kind::Change(Change::Segfault, self.part()?),
            "read" => Kind::Touch(Access::Read, self.part()?),
            "write" => Kind::Touch(Access::Write, self.part()?),
            _ => return Ok(None),
        }))
    }

    fn map(&mut self) -> Parsed<Kind> {
        let area = self.indexed("an area", |names| &mut names.areas)?;
        self.defined.push((NameKind::Area, area.name));
        let pages = self.expression("a size", SIZE)?;
        let permission = self.permission().unwrap_or(Permission::ReadWrite);
        let sharing = match () {
            () if self.accept("private") => Some(Sharing::Private),
            () if self.accept("shared") => Some(Sharing::Shared),
            () => None,
        };
        let file =
            sharing.map(|sharing| Ok((self.indexed("a file", |names| &mut names.files)?, sharing)));
        Ok(Kind::Map(Map { area, pages, permission, file: file.transpose()? }))
    }

    fn permission(&mut self) -> Option<Permission> {
        let permission = match self.peek() {
            Token::Name("none") => Permission::None,
            Token::Name("read") => Permission::Read,
            Token::Name("write") => Permission::ReadWrite,
            _ => return None,
        };
        self.take();
        Some(permission)
    }

    /// Parses the name of an area that a thread maps.
    fn used_area(&mut self) -> Parsed<Indexed> {
        let at = self.at();
        let area = self.indexed("an area", |names| &mut names.areas)?;
        self.used.push(super::parser::Use { at, kind: NameKind::Area, name: area.name });
        Ok(area)
    }

    fn is_at_end(&self) -> bool {
        matches!(self.peek(), Token::Line | Token::End | Token::Sign("}"))
    }

    /// Parses an area, and the pages of it in square brackets.
    fn part(&mut self) -> Parsed<Part> {
        let area = self.used_area()?;
        if !self.accept("[") {
            return Ok(Part { area, pages: None });
        }
        let first = self.expression("a page", SIZE)?;
        let end = self.accept("..").then(|| self.expression("a page", SIZE)).transpose()?;
        self.expect("]", "write `AREA[PAGE]` or `AREA[FIRST..END]`")?;
        Ok(Part { area, pages: Some((first, end)) })
    }

    /// Parses the rest of a statement on threads or the measurement; `None` if it is another.
    fn thread_statement(&mut self, word: &str) -> Parsed<Option<Kind>> {
        let is_end = self.is_at_end();
        Ok(Some(match word {
            "spawn" => self.start(Operation::Spawn)?,
            "fork" => self.start(Operation::Fork)?,
            "join" => Kind::Join(if is_end { None } else { Some(self.thread()?) }),
            "exec" => Kind::Plain(Operation::Exec),
            "pin" => Kind::Pin(self.expression("a CPU", NUMBER)?),
            "yield" => Kind::Plain(Operation::Yield),
            "sleep" => Kind::Timed(Operation::Sleep, self.expression("a time", TIME)?),
            "compute" => Kind::Timed(Operation::Compute, self.expression("a time", TIME)?),
            "syscall" => Kind::Plain(Operation::SystemCall),
            "lock" => Kind::OnLock(Operation::Lock, self.lock()?),
            "unlock" => Kind::OnLock(Operation::Unlock, self.lock()?),
            "barrier" => {
                let barrier = self.indexed("a barrier", |names| &mut names.barriers)?;
                Kind::Barrier(barrier, self.expression("a number of threads", NUMBER)?)
            }
            "block" => Kind::Plain(Operation::Block),
            "wake" => {
                let thread = self.thread()?;
                Kind::Wake(thread, self.index()?)
            }
            "stop" => {
                let cpu = self.expression("a CPU", NUMBER)?;
                self.expect("for", "write `stop CPU for TIME`")?;
                Kind::Stop(cpu, self.expression("a time", TIME)?)
            }
            "send" => Kind::UsePipe(self.pipe()?, End::Send),
            "receive" => Kind::UsePipe(self.pipe()?, End::Receive),
            "count" => {
                let number = (!is_end).then(|| self.expression("a number", SIZE));
                Kind::Count(number.transpose()?)
            }
            "let" => {
                let variable = self.assigned()?;
                self.expect("=", "write `let NAME = VALUE`")?;
                let (value, unit) = self.any_expression()?;
                self.define(variable, unit);
                Kind::Let(variable, value)
            }
            _ => return Ok(None),
        }))
    }

    fn lock(&mut self) -> Parsed<Indexed> {
        self.indexed("a lock", |names| &mut names.locks)
    }

    fn pipe(&mut self) -> Parsed<Indexed> {
        self.indexed("a pipe", |names| &mut names.pipes)
    }

    fn start(&mut self, start: fn(ProgramId) -> Operation) -> Parsed<Kind> {
        let thread = self.thread()?;
        let count = self.accept("*").then(|| self.expression("a number of threads", NUMBER));
        Ok(Kind::Start { start, thread, count: count.transpose()? })
    }
}

fn unknown_statement(word: &str, at: Position) -> TextError {
    let cause = match word {
        "case" | "else" => format!("`{word}` does not begin a statement"),
        _ => format!("`{word}` is not an operation"),
    };
    let distance = |known: &&str| strsim::osa_distance(known, word);
    let is_near = |known: &&str| distance(known) <= 1 + known.len() / 6;
    let near = STATEMENTS.into_iter().min_by_key(distance).filter(is_near);
    let remedy = match near {
        _ if word == "else" => "write `} else {` on one line".to_owned(),
        _ if word == "while" || word == "loop" => {
            "use `repeat N {`, `repeat for TIME {` or `for i in 0..N {`".to_owned()
        }
        _ if word == "case" => "use `case` between `choose {` and `}`".to_owned(),
        Some(near) => format!("use `{near}`"),
        None => format!("use one of {}", list(STATEMENTS)),
    };
    TextError::new(at, cause, remedy)
}
