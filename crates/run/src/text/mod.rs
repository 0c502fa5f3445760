//! Workloads as text: `shootdown run FILE`.
//!
//! A text has one statement on each line. It declares threads, which consist of operations, loops
//! and choices; the book's chapter on workloads describes the language.
//!
//! [`Text::parse`] checks a text. A [`Cell`] is one run of it, on one machine, under one design and
//! with one seed: [`Cell::run`] returns the rows. A [`Grid`] has the cells of several numbers of
//! CPUs, designs and seeds, and runs them on all CPUs of the host. Cells share nothing, and the
//! same cell gives the same rows on any host.

// In reading order.
mod error;
mod lexer;
mod expression;
mod syntax;
mod parser;
mod effects;
mod statements;
mod world;
mod thread;
mod cell;
mod grid;

use std::sync::Arc;

pub use cell::{Cell, CellError, Row};
pub use error::{Position, TextError};
pub use grid::{Grid, GridError};

use expression::{Expression, Scope};
use lexer::Unit;
use parser::Parser;
use shootdown_sim::Rng;
use syntax::{BUILT_IN, CPUS, Code, SEED, SOCKETS};

/// A workload as text, which was parsed.
#[derive(Clone, Debug)]
pub struct Text {
    name: String,
    source: String,
    code: Arc<Code>,
}

impl Text {
    /// Parses a text. Rows carry the name.
    ///
    /// # Errors
    ///
    /// If the text is not a workload. The error has the position of the first mistake.
    pub fn parse(name: &str, source: &str) -> Result<Self, TextError> {
        let code = Arc::new(statements::parse(source)?);
        Ok(Self { name: name.to_owned(), source: source.to_owned(), code })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names of the parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        let variables = &self.code.names.variables;
        self.code.parameters.iter().map(|parameter| variables[parameter.variable].0.as_str())
    }

    /// Sets a parameter to a value, which is text as in a file: `2 * cpus`, or `20us`.
    ///
    /// # Errors
    ///
    /// If the workload has no such parameter, or if the value is not of the quantity of the
    /// parameter's default. The error's position is within the value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), TextError> {
        let start = Position { line: 1, column: 1 };
        let variables = &self.code.names.variables;
        let is_wanted = |it: &syntax::Parameter| variables[it.variable].0 == name;
        let Some(index) = self.code.parameters.iter().position(is_wanted) else {
            let cause = format!("`{}` has no parameter `{}`", self.name, name.escape_debug());
            let remedy = match error::list(self.parameters()) {
                none if none.is_empty() => "add a line `parameter NAME = VALUE` to it".to_owned(),
                known => format!("set one of {known}"),
            };
            return Err(TextError::new(start, cause, remedy));
        };
        let unit = variables[self.code.parameters[index].variable].1;
        let accepted = match unit {
            Unit::Pages => vec![Unit::Pages, Unit::Count],
            unit => vec![unit],
        };
        let mut parser = Parser::new(lexer::tokens(value)?);
        let default = parser.expression(unit.name(), &accepted)?;
        parser.skip_lines();
        if parser.peek() != lexer::Token::End {
            return parser.unexpected("the end of the value", "give one value");
        }
        if parser.names.variables.len() > BUILT_IN.len() || default.is_dynamic() {
            let cause = format!("`{}` is not a constant", value.escape_debug());
            return Err(TextError::new(start, cause, "use numbers, and `cpus` or `sockets`"));
        }
        Arc::make_mut(&mut self.code).parameters[index].default = default;
        Ok(())
    }

    /// Returns the values of the variables before the run.
    fn variables(
        &self,
        cpus: usize,
        sockets: usize,
        seed: u64,
    ) -> Result<Constants<'_>, TextError> {
        let mut constants =
            Constants { code: &self.code, values: vec![None; self.code.names.variables.len()] };
        for (variable, value) in [(CPUS, cpus as u64), (SOCKETS, sockets as u64), (SEED, seed)] {
            constants.values[variable] = Some(value);
        }
        for parameter in &self.code.parameters {
            let value = parameter.default.value(&mut constants)?;
            constants.values[parameter.variable] = Some(value);
        }
        Ok(constants)
    }
}

/// The values that are known before the run.
struct Constants<'a> {
    code: &'a Code,
    values: Vec<Option<u64>>,
}

impl Constants<'_> {
    fn value(&mut self, expression: &Expression) -> Result<u64, TextError> {
        expression.value(self)
    }
}

impl Scope for Constants<'_> {
    fn variable(&self, variable: usize) -> Option<u64> {
        self.values[variable]
    }

    fn name(&self, variable: usize) -> &str {
        &self.code.names.variables[variable].0
    }

    fn random(&mut self) -> Option<&mut Rng> {
        None
    }

    fn now_ns(&self) -> Option<u64> {
        None
    }
}
