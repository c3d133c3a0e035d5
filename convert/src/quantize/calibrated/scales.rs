//! All block scales of a row at once: those that cost least with the values as they are.

use smolrun::format::{BLOCK, PANEL};

use super::curvature::Curvature;
use super::lanes::Lanes;
use super::state::State;

/// What part of its mean is added to the diagonal, so that there always is one solution.
const DAMPING: f64 = 1e-6;

/// A number of each row.
type Doubles = [f64; PANEL];

/// Gives every row the scales of least squares; `products` are those of its numbers with the moments.
pub(super) fn fit(curvature: &Curvature, states: &mut [State]) {
    let blocks = curvature.block_order.len();
    let mut systems: Vec<System> = states.iter().map(|_| System::new(blocks)).collect();
    for block in 0..blocks {
        let first = block * BLOCK;
        for (state, system) in states.iter_mut().zip(&mut systems) {
            let later = &mut state.work[first..];
            later.fill([0.0; PANEL]);
            curvature.moments.add_product(block, &state.values[block], first, later);
            for (other, products) in later.as_chunks::<BLOCK>().0.iter().enumerate() {
                system.a[(block + other) * blocks + block] = dot(&state.values[block + other], products);
            }
            let products = state.products[first..].first_chunk::<BLOCK>();
            system.y[block] = products.map_or([0.0; PANEL], |products| dot(&state.values[block], products));
        }
    }
    for (state, mut system) in states.iter_mut().zip(systems) {
        system.solve();
        for (to, scale) in state.scales.iter_mut().zip(&system.y) {
            *to = std::array::from_fn(|lane| {
                State::whole_scale((scale[lane] / f64::from(state.unit[lane])) as f32)
            });
        }
    }
}

fn dot(a: &[Lanes; BLOCK], b: &[Lanes; BLOCK]) -> Doubles {
    let mut sums = [0.0; PANEL];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..PANEL {
            sums[lane] += f64::from(a[lane] * b[lane]);
        }
    }
    sums
}

/// `a s = y` for each of sixteen rows, `a` symmetric and positive.
struct System {
    size: usize,
    /// The lower triangle.
    a: Vec<Doubles>,
    y: Vec<Doubles>,
}

impl System {
    fn new(size: usize) -> System {
        System { size, a: vec![[0.0; PANEL]; size * size], y: vec![[0.0; PANEL]; size] }
    }

    /// Puts `s` in the place of `y`, by Cholesky's factors.
    fn solve(&mut self) {
        let System { size, a, y } = self;
        let size = *size;
        let mut mean = [0.0; PANEL];
        for index in 0..size {
            add(&mut mean, 1.0 / size as f64, &a[index * size + index], &[1.0; PANEL]);
        }
        for index in 0..size {
            add(&mut a[index * size + index], DAMPING, &mean, &[1.0; PANEL]);
        }
        for column in 0..size {
            for row in column..size {
                let (mut number, columns) = (a[row * size + column], 0..column);
                for k in columns {
                    add(&mut number, -1.0, &a[row * size + k], &a[column * size + k]);
                }
                let pivot = a[column * size + column];
                a[row * size + column] = match row == column {
                    true => number.map(f64::sqrt),
                    false => std::array::from_fn(|lane| number[lane] / pivot[lane]),
                };
            }
        }
        for row in 0..size {
            for k in 0..row {
                let (known, factor) = (y[k], a[row * size + k]);
                add(&mut y[row], -1.0, &factor, &known);
            }
            y[row] = std::array::from_fn(|lane| y[row][lane] / a[row * size + row][lane]);
        }
        for row in (0..size).rev() {
            for k in row + 1..size {
                let (known, factor) = (y[k], a[k * size + row]);
                add(&mut y[row], -1.0, &factor, &known);
            }
            y[row] = std::array::from_fn(|lane| y[row][lane] / a[row * size + row][lane]);
        }
    }
}

/// `to += factor * a * b`
fn add(to: &mut Doubles, factor: f64, a: &Doubles, b: &Doubles) {
    for lane in 0..PANEL {
        to[lane] += factor * (a[lane] * b[lane]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_solution_solves() {
        let size = 7;
        let root = |row: usize, k: usize, lane: usize| ((row * 5 + k * 3 + lane) % 7) as f64 - 2.0;
        let at = |row: usize, column: usize| {
            let own = if row == column { 3.0 } else { 0.0 };
            std::array::from_fn(|lane| {
                own + (0..size).map(|k| root(row, k, lane) * root(column, k, lane)).sum::<f64>()
            })
        };
        let mut system = System::new(size);
        for row in 0..size {
            system.y[row] = std::array::from_fn(|lane| (row * lane) as f64 - 9.0);
            for column in 0..=row {
                system.a[row * size + column] = at(row, column);
            }
        }
        let y = system.y.clone();
        system.solve();
        for (row, y) in y.iter().enumerate() {
            for (lane, &y) in y.iter().enumerate() {
                let found: f64 = (0..size).map(|k| at(row, k)[lane] * system.y[k][lane]).sum();
                assert!((found - y).abs() < 1e-3, "{row} {lane}: {found}, {y}"); // the damping
            }
        }
    }
}
