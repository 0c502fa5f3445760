//! The parser's words, names and expressions. [`statements`](super::statements) has the rest.

use super::error::{Position, TextError, list};
use super::expression::{Expression, Function, Operator};
use super::lexer::{Token, Unit};
use super::syntax::{BUILT_IN, Indexed, Names};

/// The depth to which blocks and brackets may be nested. The parser recurses.
const DEPTH_MAX: u32 = 64;

/// The state of the parser: the words that are left, and the names so far.
pub(super) struct Parser<'t> {
    tokens: std::vec::IntoIter<(Position, Token<'t>)>,
    next: (Position, Token<'t>),
    depth: u32,
    pub(super) names: Names,
    /// The threads of the text, which statements may name before their definition.
    pub(super) threads: Vec<&'t str>,
    /// The places where names were used that must be defined somewhere in the text.
    pub(super) used: Vec<Use>,
    /// The variables and the areas that were defined.
    pub(super) defined: Vec<(NameKind, usize)>,
}

/// A use of a name.
pub(super) struct Use {
    pub(super) at: Position,
    pub(super) kind: NameKind,
    pub(super) name: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    Variable,
    Area,
    Thread,
}

pub(super) type Parsed<T> = Result<T, TextError>;

impl<'t> Parser<'t> {
    pub(super) fn new(tokens: Vec<(Position, Token<'t>)>) -> Self {
        let mut threads = Vec::new();
        for words in tokens.windows(2) {
            if let [(_, Token::Name("thread")), (_, Token::Name(name))] = words
                && !threads.contains(name)
            {
                threads.push(*name);
            }
        }
        let mut names = Names::default();
        names.variables.extend(BUILT_IN.map(|name| (name.to_owned(), Unit::Count)));
        let end = (Position { line: 1, column: 1 }, Token::End);
        let mut tokens = tokens.into_iter();
        let next = tokens.next().unwrap_or(end);
        let defined = (0..BUILT_IN.len()).map(|name| (NameKind::Variable, name)).collect();
        Self { tokens, next, depth: 0, names, threads, used: Vec::new(), defined }
    }

    pub(super) const fn at(&self) -> Position {
        self.next.0
    }

    pub(super) const fn peek(&self) -> Token<'t> {
        self.next.1
    }

    /// Returns the next word, and goes on to the one after it. The end of the text is its own
    /// successor.
    pub(super) fn take(&mut self) -> Token<'t> {
        let (at, token) = self.next;
        self.next = self.tokens.next().unwrap_or((at, Token::End));
        token
    }

    pub(super) fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(found) if found == sign)
    }

    /// Takes a sign or a word if it is next.
    pub(super) fn accept(&mut self, word: &str) -> bool {
        let found = match self.peek() {
            Token::Name(name) => name == word,
            Token::Sign(sign) => sign == word,
            _ => false,
        };
        if found {
            self.take();
        }
        found
    }

    /// Returns an error at the next word.
    pub(super) fn unexpected<T>(&self, expected: &str, remedy: &str) -> Parsed<T> {
        let cause = format!("expected {expected}, found {}", self.peek());
        Err(TextError::new(self.at(), cause, remedy))
    }

    pub(super) fn expect(&mut self, sign: &str, remedy: &str) -> Parsed<()> {
        if self.accept(sign) { Ok(()) } else { self.unexpected(&format!("`{sign}`"), remedy) }
    }

    /// Takes a name, which the text gives to `what`.
    pub(super) fn name(&mut self, what: &str) -> Parsed<&'t str> {
        match self.peek() {
            Token::Name(name) => {
                self.take();
                Ok(name)
            }
            _ => self.unexpected(&format!("the name of {what}"), "use letters, digits and `_`"),
        }
    }

    /// Takes the ends of lines.
    pub(super) fn skip_lines(&mut self) {
        while self.peek() == Token::Line {
            self.take();
        }
    }

    /// Checks that a statement ends here.
    pub(super) fn end_of_statement(&mut self) -> Parsed<()> {
        match self.peek() {
            Token::Line => {
                self.take();
                Ok(())
            }
            Token::End => Ok(()),
            Token::Sign("}") => Ok(()),
            _ => self.unexpected("the end of the line", "write one statement on each line"),
        }
    }

    /// Parses something that may contain itself.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == DEPTH_MAX {
            let cause = format!("blocks and brackets are nested deeper than {DEPTH_MAX}");
            return Err(TextError::new(self.at(), cause, "move a part to a thread of its own"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Returns the number of a variable.
    pub(super) fn variable(&mut self, name: &str) -> usize {
        let variables = &mut self.names.variables;
        variables.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            variables.push((name.to_owned(), Unit::Any));
            variables.len() - 1
        })
    }

    /// Takes the name of a variable to which the text assigns values.
    pub(super) fn assigned(&mut self) -> Parsed<usize> {
        let at = self.at();
        let name = self.name("a variable")?;
        if BUILT_IN.contains(&name) || ["min", "max", "random", "now", "not"].contains(&name) {
            let cause = format!("`{name}` is a name of the language");
            return Err(TextError::new(at, cause, "use another name"));
        }
        let variable = self.variable(name);
        Ok(variable)
    }

    /// Records that a variable has values of a quantity.
    pub(super) fn define(&mut self, variable: usize, unit: Unit) {
        let is_first = !self.defined.contains(&(NameKind::Variable, variable));
        let known = &mut self.names.variables[variable].1;
        *known = if is_first || *known == unit { unit } else { Unit::Any };
        self.defined.push((NameKind::Variable, variable));
    }

    /// Takes a name with an optional index in brackets.
    pub(super) fn indexed(
        &mut self,
        what: &str,
        names: impl FnOnce(&mut Names) -> &mut Vec<String>,
    ) -> Parsed<Indexed> {
        let name = self.name(what)?;
        let name = number_of(names(&mut self.names), name);
        Ok(Indexed { name, index: self.index()? })
    }

    /// Takes an optional index in brackets.
    pub(super) fn index(&mut self) -> Parsed<Option<Expression>> {
        if !self.accept("(") {
            return Ok(None);
        }
        let index = self.expression("an index", &[Unit::Count])?;
        self.expect(")", "close the bracket of the index")?;
        Ok(Some(index))
    }

    /// Takes the name of a thread.
    pub(super) fn thread(&mut self) -> Parsed<usize> {
        let at = self.at();
        let name = self.name("a thread")?;
        match self.threads.iter().position(|known| *known == name) {
            Some(thread) => {
                self.used.push(Use { at, kind: NameKind::Thread, name: thread });
                Ok(thread)
            }
            None => {
                let remedy = format!(
                    "add `thread {name} {{ … }}`, or use {}",
                    list(self.threads.iter().copied())
                );
                Err(TextError::new(at, format!("there is no thread `{name}`"), remedy))
            }
        }
    }

    /// Parses an expression of one of some quantities. Any variable is accepted whose values are of
    /// several quantities.
    pub(super) fn expression(&mut self, what: &str, units: &[Unit]) -> Parsed<Expression> {
        let at = self.at();
        let (expression, unit) = self.level(0)?;
        if unit == Unit::Any || units.contains(&unit) {
            return Ok(expression);
        }
        let remedy = match units {
            [Unit::Time, ..] => "add a unit: ns, us, ms or s",
            [Unit::Pages, ..] => "use a number of pages, or KiB, MiB or GiB",
            _ => "use a number without a unit",
        };
        Err(TextError::new(at, format!("expected {what}, found {}", unit.name()), remedy))
    }

    /// Parses an expression of any quantity, which it returns.
    pub(super) fn any_expression(&mut self) -> Parsed<(Expression, Unit)> {
        self.level(0)
    }

    /// Parses operators of a level and above.
    fn level(&mut self, level: usize) -> Parsed<(Expression, Unit)> {
        let Some(operators) = Operator::LEVELS.get(level) else { return self.nested(Self::atom) };
        let (mut left, mut unit) = self.level(level + 1)?;
        loop {
            let at = self.at();
            let found = operators.iter().find(|(word, _)| self.accept(word));
            let Some(&(word, operator)) = found else { return Ok((left, unit)) };
            let (right, right_unit) = self.level(level + 1)?;
            unit = combined(operator, unit, right_unit).ok_or_else(|| {
                let cause = format!("`{word}` of {} and {}", unit.name(), right_unit.name());
                TextError::new(at, cause, "give both sides the same unit")
            })?;
            left = Expression::Binary(Box::new((left, right)), operator, at);
        }
    }

    fn atom(&mut self) -> Parsed<(Expression, Unit)> {
        let at = self.at();
        match self.peek() {
            Token::Number(number, unit) => {
                self.take();
                Ok((Expression::Number(number), unit))
            }
            Token::Sign("(") => {
                self.take();
                let inner = self.level(0)?;
                self.expect(")", "close the bracket")?;
                Ok(inner)
            }
            Token::Name("not") => {
                self.take();
                let (inner, _) = self.nested(Self::atom)?;
                Ok((Expression::Not(Box::new(inner)), Unit::Count))
            }
            Token::Name("now") => {
                self.take();
                Ok((Expression::Now, Unit::Time))
            }
            Token::Name("min") => self.call(Function::Min),
            Token::Name("max") => self.call(Function::Max),
            Token::Name("random") => self.call(Function::Random),
            Token::Name(name) => {
                self.take();
                let variable = self.variable(name);
                self.used.push(Use { at, kind: NameKind::Variable, name: variable });
                Ok((Expression::Variable(variable, at), self.names.variables[variable].1))
            }
            _ => self.unexpected("a number or a variable", "write a value here"),
        }
    }

    /// Parses a call. `random(n)` stands for `random(0, n)`.
    fn call(&mut self, function: Function) -> Parsed<(Expression, Unit)> {
        let at = self.at();
        self.take();
        self.expect("(", "write the arguments in brackets")?;
        let (first, unit) = self.level(0)?;
        let (arguments, unit) = if self.accept(",") {
            let (second, other) = self.level(0)?;
            let unit = combined(Operator::Add, unit, other).ok_or_else(|| {
                let cause = format!("the arguments are {} and {}", unit.name(), other.name());
                TextError::new(at, cause, "give both the same unit")
            })?;
            ((first, second), unit)
        } else if function == Function::Random {
            ((Expression::Number(0), first), unit)
        } else {
            return self.unexpected("`,`", "give two arguments");
        };
        self.expect(")", "close the bracket")?;
        Ok((Expression::Call(function, Box::new(arguments), at), unit))
    }
}

/// Returns the quantity of a result; `None` if the operator has no meaning for the quantities.
fn combined(operator: Operator, left: Unit, right: Unit) -> Option<Unit> {
    let same = match (left, right) {
        (Unit::Any, other) | (other, Unit::Any) => Some(other),
        _ if left == right => Some(left),
        // Pages are counted: `heap[first + 4]` needs no unit.
        (Unit::Pages, Unit::Count) | (Unit::Count, Unit::Pages) => Some(Unit::Pages),
        _ => None,
    };
    match operator {
        Operator::And | Operator::Or => Some(Unit::Count),
        Operator::Add | Operator::Subtract | Operator::Remainder => same,
        Operator::Equal
        | Operator::NotEqual
        | Operator::Less
        | Operator::LessOrEqual
        | Operator::Greater
        | Operator::GreaterOrEqual => same.map(|_| Unit::Count),
        Operator::Multiply => match (left, right) {
            (Unit::Count, other) | (other, Unit::Count) => Some(other),
            (Unit::Any, other) | (other, Unit::Any) => Some(other),
            _ => None,
        },
        Operator::Divide => match (left, right) {
            (left, Unit::Count) => Some(left),
            (Unit::Any, _) | (_, Unit::Any) => Some(Unit::Any),
            _ => same.map(|_| Unit::Count),
        },
    }
}

/// Returns the number of a name, which is added if it is new.
pub(super) fn number_of(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}
