//! All block scales of a row at once: those that cost least with the values as they are.

use smolrun::format::{BLOCK, PANEL};
use smolrun::{Kernels, PlainOp, one_by_one};

use super::super::lanes::{Doubles, Lanes, doubles};
use super::curvature::Curvature;
use super::state::State;

/// What part of its mean is added to the diagonal, so that there always is one solution.
const DAMPING: f64 = 1e-6;
/// Rows that are factorized together: each number takes a chain of subtractions, and the processor can work on several chains
/// at once.
const ROWS: usize = 4;

/// What the outputs of sixteen rows lose, and what they are, both as mean squares.
pub(super) struct OutputLoss {
    pub(super) lost: Doubles,
    pub(super) all: Doubles,
}

/// Gives all rows the scales of least squares, and says what they lose then. `work` is the gradient, and used up.
///
/// Scales are whole numbers of units. Where one input is far above all others, the nearest of these can cost more than what
/// the row had, which it keeps then.
pub(super) fn fit(
    curvature: &Curvature,
    kernels: Kernels,
    states: &mut [State],
    work: &mut [Lanes],
) -> Vec<OutputLoss> {
    let systems = systems(curvature, kernels, states, work);
    let fit = |(state, system): (&mut State, System)| {
        let mut steps = system.y.clone();
        kernels.compute(Solve { system: &system, y: &mut steps });
        let before = state.scales.clone();
        for (block, step) in steps.iter_mut().enumerate() {
            *step = state.change_scale(block, step);
        }
        let mut loss = OutputLoss { lost: system.lost, all: system.outputs(kernels, state, &before) };
        system.add_cost(kernels, &steps, -2.0, &mut loss.lost);
        for lane in 0..PANEL {
            let is_better = loss.lost[lane] < system.lost[lane];
            if !is_better {
                loss.lost[lane] = system.lost[lane];
                state.scales.iter_mut().zip(&before).for_each(|(scales, before)| scales[lane] = before[lane]);
            }
        }
        loss
    };
    states.iter_mut().zip(systems).map(fit).collect()
}

/// What all rows lose. `work` is the gradient, and used up.
pub(super) fn losses(
    curvature: &Curvature,
    kernels: Kernels,
    states: &[State],
    work: &mut [Lanes],
) -> Vec<OutputLoss> {
    let systems = systems(curvature, kernels, states, work);
    let loss = |(state, system): (&State, System)| {
        let all = system.outputs(kernels, state, &state.scales);
        OutputLoss { lost: system.lost, all }
    };
    states.iter().zip(systems).map(loss).collect()
}

fn systems(curvature: &Curvature, kernels: Kernels, states: &[State], work: &mut [Lanes]) -> Vec<System> {
    let places = curvature.places();
    let gradients = work.chunks_exact(places);
    let mut systems: Vec<System> =
        states.iter().zip(gradients).map(|(state, gradient)| System::new(state, gradient)).collect();
    for (column, first) in (0..places).step_by(BLOCK).enumerate() {
        let values: Vec<_> = states.iter().map(|state| state.values[column]).collect();
        work.chunks_exact_mut(places).for_each(|products| products[first..].fill(Lanes::ZERO));
        curvature.moments.add_products(column, &values, first, work);
        for ((state, products), system) in states.iter().zip(work.chunks_exact(places)).zip(&mut systems) {
            let (values, products) = (&state.values[column..], products[first..].as_chunks().0);
            kernels.compute(SetColumn { a: &mut system.a, column, values, products });
        }
    }
    systems.iter_mut().for_each(|system| kernels.compute(Factorize { system }));
    systems
}

/// `a s = y` for each of sixteen rows, `a` symmetric and positive: by how much `s` the scales are to change.
struct System {
    /// The lower triangle, row after row: products of blocks' values with the moments between them; then the factor of it.
    a: Vec<Doubles>,
    /// Products of blocks' values with the gradient.
    y: Vec<Doubles>,
    /// What was added to the diagonal.
    damping: Doubles,
    /// What is lost as scales are.
    lost: Doubles,
}

impl System {
    /// With all but `a`.
    fn new(state: &State, gradient: &[Lanes]) -> System {
        let size = state.scales.len();
        let mut system = System {
            a: vec![[0.0; PANEL]; size * (size + 1) / 2],
            y: vec![[0.0; PANEL]; size],
            damping: [0.0; PANEL],
            lost: [0.0; PANEL],
        };
        for (block, (y, gradient)) in system.y.iter_mut().zip(gradient.as_chunks().0).enumerate() {
            add_dot(y, &state.values[block], gradient);
            add_dot(&mut system.lost, &state.errors(block), gradient);
        }
        system
    }

    /// The mean squares of the outputs, where the gradient was that of these `scales`.
    fn outputs(&self, kernels: Kernels, state: &State, scales: &[Lanes]) -> Doubles {
        // A matrix is its errors and what its values stand for.
        let whole =
            |scale: &Lanes| std::array::from_fn(|lane| f64::from(scale[lane]) * f64::from(state.unit[lane]));
        let scales: Vec<Doubles> = scales.iter().map(whole).collect();
        let mut all = self.lost;
        self.add_cost(kernels, &scales, 2.0, &mut all);
        all
    }

    /// `to += transpose(s) a s + factor * transpose(s) y`
    fn add_cost(&self, kernels: Kernels, s: &[Doubles], factor: f64, to: &mut Doubles) {
        let mut products = vec![[0.0; PANEL]; s.len()];
        kernels.compute(Combine { a: &self.a, s, to: &mut products });
        for ((s, y), product) in s.iter().zip(&self.y).zip(products) {
            for lane in 0..PANEL {
                to[lane] += product[lane] * product[lane] - self.damping[lane] * (s[lane] * s[lane]);
                to[lane] += factor * (s[lane] * y[lane]);
            }
        }
    }
}

/// Where a row of the lower triangle begins.
fn start(row: usize) -> usize {
    row * (row + 1) / 2
}

/// A row of the lower triangle.
fn row(a: &[Doubles], row: usize) -> &[Doubles] {
    &a[start(row)..][..=row]
}

/// A column of the lower triangle, from the diagonal on: products of blocks' values with those of the moments with a block's.
struct SetColumn<'a> {
    a: &'a mut [Doubles],
    column: usize,
    /// `[blocks from this one on]`
    values: &'a [[Lanes; BLOCK]],
    /// As many.
    products: &'a [[Lanes; BLOCK]],
}

impl PlainOp for SetColumn<'_> {
    #[inline(always)]
    fn compute(self) {
        for (row, (values, products)) in (self.column..).zip(self.values.iter().zip(self.products)) {
            add_dot(&mut self.a[start(row) + self.column], values, products);
        }
    }
}

/// Puts Cholesky's factor in the place of a matrix, the damping added.
struct Factorize<'a> {
    system: &'a mut System,
}

impl PlainOp for Factorize<'_> {
    #[inline(always)]
    fn compute(self) {
        let System { a, y, damping, .. } = self.system;
        let size = y.len();
        for index in 0..size {
            add(damping, DAMPING / size as f64, &a[start(index) + index], &[1.0; PANEL]);
        }
        for index in 0..size {
            add(&mut a[start(index) + index], 1.0, damping, &[1.0; PANEL]);
        }
        let whole = size / ROWS * ROWS;
        for first in (0..whole).step_by(ROWS) {
            factorize_rows::<ROWS>(a, first);
        }
        for first in whole..size {
            factorize_rows::<1>(a, first);
        }
    }
}

/// Makes `R` rows from row `first` on those of the factor, as all above them are.
#[inline(always)]
fn factorize_rows<const R: usize>(a: &mut [Doubles], first: usize) {
    let (above, rows) = a.split_at_mut(start(first));
    for column in 0..first {
        let factors = row(above, column);
        let mut numbers = [[0.0; PANEL]; R];
        let mut before = [[].as_slice(); R];
        for index in 0..R {
            let own = &rows[start(first + index) - start(first)..];
            before[index] = &own[..column];
            numbers[index] = own[column];
        }
        // All lanes of a number are written together, and no number is lent out, as to `divide`. Only then does the compiler
        // keep them in registers, which is twice as fast.
        for (k, factor) in one_by_one(&factors[..column]).enumerate() {
            for index in 0..R {
                let (number, before) = (numbers[index], &before[index][k]);
                numbers[index] = doubles(|lane| number[lane] - before[lane] * factor[lane]);
            }
        }
        for index in 0..R {
            let number = numbers[index];
            rows[start(first + index) - start(first) + column] =
                doubles(|lane| number[lane] / factors[column][lane]);
        }
    }
    // What is left are these rows' products with one another.
    for index in 0..R {
        let (above, own) = rows.split_at_mut(start(first + index) - start(first));
        for column in first..=first + index {
            let (before, number) = own.split_at_mut(column);
            let is_last = column == first + index;
            let factors = if is_last { &*before } else { &above[start(column) - start(first)..][..=column] };
            for (factor, before) in factors.iter().zip(&*before) {
                add(&mut number[0], -1.0, before, factor);
            }
            for lane in 0..PANEL {
                let number = &mut number[0][lane];
                *number = if is_last { number.sqrt() } else { *number / factors[column][lane] };
            }
        }
    }
}

/// Puts `s` in the place of `y`.
struct Solve<'a> {
    system: &'a System,
    y: &'a mut [Doubles],
}

impl PlainOp for Solve<'_> {
    #[inline(always)]
    fn compute(self) {
        let Solve { system: System { a, .. }, y } = self;
        for index in 0..y.len() {
            let (known, y) = y.split_at_mut(index);
            let factors = row(a, index);
            for (known, factor) in known.iter().zip(factors) {
                add(&mut y[0], -1.0, factor, known);
            }
            divide(&mut y[0], &factors[index]);
        }
        for index in (0..y.len()).rev() {
            let (unknown, y) = y.split_at_mut(index);
            let factors = row(a, index);
            divide(&mut y[0], &factors[index]);
            for (unknown, factor) in unknown.iter_mut().zip(one_by_one(factors)) {
                add(unknown, -1.0, factor, &y[0]);
            }
        }
    }
}

/// Adds `transpose(a) s` to `to`, `a` being triangular.
struct Combine<'a> {
    a: &'a [Doubles],
    s: &'a [Doubles],
    to: &'a mut [Doubles],
}

impl PlainOp for Combine<'_> {
    #[inline(always)]
    fn compute(self) {
        for (index, s) in self.s.iter().enumerate() {
            for (to, factor) in self.to.iter_mut().zip(one_by_one(row(self.a, index))) {
                add(to, 1.0, factor, s);
            }
        }
    }
}

#[inline(always)]
fn add_dot(to: &mut Doubles, a: &[Lanes; BLOCK], b: &[Lanes; BLOCK]) {
    for (a, b) in a.iter().zip(b) {
        for lane in 0..PANEL {
            to[lane] += f64::from(a[lane] * b[lane]);
        }
    }
}

/// `to += factor * a * b`
#[inline(always)]
fn add(to: &mut Doubles, factor: f64, a: &Doubles, b: &Doubles) {
    for lane in 0..PANEL {
        to[lane] += factor * (a[lane] * b[lane]);
    }
}

#[inline(always)]
fn divide(numbers: &mut Doubles, by: &Doubles) {
    for lane in 0..PANEL {
        numbers[lane] /= by[lane];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_solution_solves_and_costs_what_it_should() {
        let size = 11;
        let root = |row: usize, k: usize, lane: usize| ((row * 5 + k * 3 + lane) % 7) as f64 - 2.0;
        let at = |row: usize, column: usize| -> Doubles {
            let own = if row == column { 6.0 } else { 0.0 };
            std::array::from_fn(|lane| {
                own + (0..size).map(|k| root(row, k, lane) * root(column, k, lane)).sum::<f64>()
            })
        };
        let a: Vec<Doubles> = (0..size)
            .flat_map(|row| (0..=row).map(move |column| (row, column)))
            .map(|(r, c)| at(r, c))
            .collect();
        let y: Vec<Doubles> =
            (0..size).map(|row| std::array::from_fn(|lane| (row * lane) as f64 - 9.0)).collect();
        for kernels in Kernels::available() {
            let (damping, lost) = ([0.0; PANEL], [0.0; PANEL]);
            let mut system = System { a: a.clone(), y: y.clone(), damping, lost };
            kernels.compute(Factorize { system: &mut system });
            let mut s = y.clone();
            kernels.compute(Solve { system: &system, y: &mut s });
            let product =
                |row: usize, lane: usize| -> f64 { (0..size).map(|k| at(row, k)[lane] * s[k][lane]).sum() };
            let mut cost = [1.0; PANEL];
            system.add_cost(kernels, &s, -2.0, &mut cost);
            for lane in 0..PANEL {
                for (row, y) in y.iter().enumerate() {
                    let (found, expected) = (product(row, lane), y[lane]);
                    assert!((found - expected).abs() < 1e-3, "{row} {lane}: {found}, {expected}"); // the damping
                }
                let squares: f64 = (0..size).map(|row| s[row][lane] * product(row, lane)).sum();
                let products: f64 = (0..size).map(|row| s[row][lane] * y[row][lane]).sum();
                let expected = 1.0 + squares - 2.0 * products;
                let difference = (cost[lane] - expected).abs();
                assert!(difference < 1e-9 * squares.max(1.0), "{lane}: {}, {expected}", cost[lane]);
            }
        }
    }
}
