//! What a matrix's errors cost: how much each two inputs go together.

use smolrun::Kernels;
use smolrun::format::BLOCK;

use super::factor::Factor;
use super::strips::Strips;

/// The mean of `x transpose(x)` over inputs `x` of a matrix, or a part of it: a row's errors `d` cost its output the mean
/// square `transpose(d) moments d`.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Inputs of the matrix.
    pub columns: usize,
    /// Rows of `columns` numbers, symmetric.
    pub numbers: Vec<f32>,
    /// What is added to the diagonal where the errors of early columns are made up for by later ones.
    pub damping: f32,
}

/// The same in the order of work, whole blocks of it: those columns first that cost most.
#[derive(Debug)]
pub(super) struct Curvature {
    /// The blocks of 32 columns, in the order of work.
    pub(super) block_order: Vec<usize>,
    /// The column at each place of work; some may be beyond the matrix's.
    pub(super) order: Vec<usize>,
    /// The moments.
    pub(super) moments: Strips,
    /// For each place, how much of the errors in earlier ones it makes up for; 0 elsewhere.
    pub(super) carry: Strips,
    /// For each place, what the square of an error there costs when all later columns have made up for it.
    pub(super) costs: Vec<f32>,
}

impl Curvature {
    /// `None` where the moments are not finite, or all zero.
    pub(super) fn new(moments: Moments, kernels: Kernels) -> Option<Curvature> {
        let mean = mean_diagonal(&moments);
        if !(mean > 0.0 && moments.numbers.iter().all(|number| number.is_finite())) {
            return None;
        }
        let (block_order, order) = orders(&moments);
        let Moments { columns, numbers, damping } = moments;
        let size = order.len();
        let moments = Strips::new(kernels, size, |place, other| {
            let (row, column) = (order[place], order[other]);
            if row.max(column) < columns { numbers[row * columns + column] } else { 0.0 }
        });
        drop(numbers); // what comes now is as large
        let factor = Factor::new(&moments, damping)?;
        let carried = |place: usize, earlier: usize| match place > earlier {
            true => factor.at(earlier, place) / factor.at(place, place),
            false => 0.0,
        };
        Some(Curvature {
            carry: Strips::new(kernels, size, carried),
            costs: (0..size).map(|place| factor.at(place, place).powi(2)).collect(),
            moments,
            block_order,
            order,
        })
    }

    /// Columns, rounded up to whole blocks.
    pub(super) fn places(&self) -> usize {
        self.order.len()
    }
}

fn mean_diagonal(moments: &Moments) -> f32 {
    let diagonal = (0..moments.columns).map(|column| diagonal(moments, column));
    (diagonal.map(f64::from).sum::<f64>() / moments.columns as f64) as f32
}

/// What a column costs, 0 beyond the matrix's.
fn diagonal(moments: &Moments, column: usize) -> f32 {
    if column < moments.columns { moments.numbers[column * moments.columns + column] } else { 0.0 }
}

/// The blocks, and the columns, of which those of a block stay together: in either, those first that cost most.
fn orders(moments: &Moments) -> (Vec<usize>, Vec<usize>) {
    let columns_of = |block: usize| block * BLOCK..(block + 1) * BLOCK;
    let costs: Vec<f32> = (0..moments.columns.div_ceil(BLOCK))
        .map(|block| columns_of(block).map(|column| diagonal(moments, column)).sum())
        .collect();
    let mut blocks: Vec<usize> = (0..costs.len()).collect();
    blocks.sort_by(|&a, &b| costs[b].total_cmp(&costs[a])); // stable
    let columns = blocks.iter().flat_map(|&block| {
        let mut columns: Vec<usize> = columns_of(block).collect();
        columns.sort_by(|&a, &b| diagonal(moments, b).total_cmp(&diagonal(moments, a)));
        columns
    });
    let columns = columns.collect();
    (blocks, columns)
}
