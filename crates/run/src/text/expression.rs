//! Expressions over whole numbers.

use shootdown_sim::Rng;

use super::error::{Position, TextError};

/// An expression. Positions are those of operators and names.
#[derive(Clone, Debug)]
pub(super) enum Expression {
    Number(u64),
    Variable(usize, Position),
    Binary(Box<(Self, Self)>, Operator, Position),
    /// A function of two arguments.
    Call(Function, Box<(Self, Self)>, Position),
    Not(Box<Self>),
    /// Nanoseconds since the start of the run.
    Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Min,
    Max,
    /// A random number, from the first argument on and below the second.
    Random,
}

impl Operator {
    /// The operators of each level, from the one that binds least.
    pub(super) const LEVELS: [&[(&str, Self)]; 5] = [
        &[("or", Self::Or)],
        &[("and", Self::And)],
        &[
            ("==", Self::Equal),
            ("!=", Self::NotEqual),
            ("<=", Self::LessOrEqual),
            (">=", Self::GreaterOrEqual),
            ("<", Self::Less),
            (">", Self::Greater),
        ],
        &[("+", Self::Add), ("-", Self::Subtract)],
        &[("*", Self::Multiply), ("/", Self::Divide), ("%", Self::Remainder)],
    ];
}

/// The values that expressions refer to.
pub(super) trait Scope {
    /// Returns a variable's value; `None` before the first assignment.
    fn variable(&self, variable: usize) -> Option<u64>;
    /// Returns a variable's name.
    fn name(&self, variable: usize) -> &str;
    /// Returns the random numbers; `None` where they have no meaning.
    fn random(&mut self) -> Option<&mut Rng>;
    /// Returns the simulated time; `None` before the run.
    fn now_ns(&self) -> Option<u64>;
}

impl Expression {
    /// Computes the value.
    pub(super) fn value(&self, scope: &mut impl Scope) -> Result<u64, TextError> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Variable(variable, at) => scope.variable(*variable).ok_or_else(|| {
                let cause = format!("`{}` has no value here", scope.name(*variable));
                TextError::new(*at, cause, "assign it with `let` before this line")
            }),
            Self::Binary(sides, operator, at) => {
                let (left, right) = (sides.0.value(scope)?, sides.1.value(scope)?);
                operator.apply(left, right, *at)
            }
            Self::Call(function, arguments, at) => {
                let (first, second) = (arguments.0.value(scope)?, arguments.1.value(scope)?);
                function.apply(first, second, *at, scope)
            }
            Self::Not(inner) => Ok(u64::from(inner.value(scope)? == 0)),
            Self::Now => Ok(scope.now_ns().unwrap_or_default()),
        }
    }

    /// Returns `true` if the value needs a thread that runs.
    pub(super) fn is_dynamic(&self) -> bool {
        match self {
            Self::Number(_) | Self::Variable(..) => false,
            Self::Now | Self::Call(Function::Random, ..) => true,
            Self::Binary(sides, ..) | Self::Call(_, sides, _) => {
                sides.0.is_dynamic() || sides.1.is_dynamic()
            }
            Self::Not(inner) => inner.is_dynamic(),
        }
    }
}

impl Operator {
    fn apply(self, left: u64, right: u64, at: Position) -> Result<u64, TextError> {
        let (result, cause, remedy) = match self {
            Self::Equal => return Ok(u64::from(left == right)),
            Self::NotEqual => return Ok(u64::from(left != right)),
            Self::Less => return Ok(u64::from(left < right)),
            Self::LessOrEqual => return Ok(u64::from(left <= right)),
            Self::Greater => return Ok(u64::from(left > right)),
            Self::GreaterOrEqual => return Ok(u64::from(left >= right)),
            Self::And => return Ok(u64::from(left != 0 && right != 0)),
            Self::Or => return Ok(u64::from(left != 0 || right != 0)),
            Self::Add => (left.checked_add(right), "too large", "use smaller numbers"),
            Self::Multiply => (left.checked_mul(right), "too large", "use smaller numbers"),
            Self::Subtract => {
                (left.checked_sub(right), "negative", "use `max` to keep the difference above 0")
            }
            Self::Divide => {
                (left.checked_div(right), "a division by 0", "use `max(1, …)` as the divisor")
            }
            Self::Remainder => {
                (left.checked_rem(right), "a division by 0", "use `max(1, …)` as the divisor")
            }
        };
        result.ok_or_else(|| {
            TextError::new(at, format!("the result for {left} and {right} is {cause}"), remedy)
        })
    }
}

impl Function {
    fn apply(
        self,
        first: u64,
        second: u64,
        at: Position,
        scope: &mut impl Scope,
    ) -> Result<u64, TextError> {
        match self {
            Self::Min => Ok(first.min(second)),
            Self::Max => Ok(first.max(second)),
            Self::Random => match scope.random() {
                Some(rng) if first < second => Ok(first + rng.below(second - first)),
                _ => Err(TextError::new(
                    at,
                    format!("there is no number from {first} on and below {second}"),
                    "use a larger upper bound: `random(4)` is 0, 1, 2 or 3",
                )),
            },
        }
    }
}
