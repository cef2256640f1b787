// SPDX-License-Identifier: GPL-2.0-only
//! `cohort sets --png`: the matrix as shades, its rows in the order of the tree's leaves, so that each set is a square on the diagonal; the tree beside it.

use cohort_sets::{Matrix, Node, Sets, Tree};

use super::canvas::{self, Canvas, GLYPH_HEIGHT, INK, MARK, PALE};

const MARGIN: usize = 16;
/// Of the matrix; few vCPUs make it smaller, many larger.
const SIDE: usize = 560;
const CELL_MIN: usize = 4;
const CELL_MAX: usize = 44;
/// From one join to the next, to the right.
const STEP_MAX: usize = 70;
const STEP_MIN: usize = 10;
const TREE: usize = 420;

/// How large it is, and where things are.
struct Layout {
    width: usize,
    height: usize,
    cell: usize,
    /// Of letters.
    scale: usize,
    left: usize,
    top: usize,
    step: usize,
}

impl Layout {
    fn of(tree: &Tree, leaves: &[u32], title: &str) -> Self {
        let cell = (SIDE / leaves.len().max(1)).clamp(CELL_MIN, CELL_MAX);
        let scale = if cell >= 22 { 2 } else { 1 };
        let joins = height(&tree.root).max(1);
        let side = cell * leaves.len();
        let left = MARGIN + canvas::text_width(&(leaves.len() - 1).to_string(), scale) + 8;
        let top = MARGIN + 2 * GLYPH_HEIGHT + 16 + scale * GLYPH_HEIGHT;
        let step = (TREE / joins).clamp(STEP_MIN, STEP_MAX);
        let width = left + side + 12 + step * (joins + 1) + canvas::text_width("9.99e9", scale) + MARGIN;
        let width = width.max(2 * MARGIN + canvas::text_width(title, 2).min(2 * SIDE));
        Self { width, height: top + side + MARGIN, cell, scale, left, top, step }
    }
}

/// How wide and high one VM's picture is.
pub fn size(name: &str, tree: &Tree, sets: &Sets) -> (usize, usize) {
    let at = Layout::of(tree, &leaves(&tree.root), &title(name, sets));
    (at.width, at.height)
}

/// One VM's picture.
pub fn draw(name: &str, matrix: &Matrix, tree: &Tree, sets: &Sets) -> Canvas {
    let (leaves, title) = (leaves(&tree.root), title(name, sets));
    let at = Layout::of(tree, &leaves, &title);
    let mut canvas = Canvas::new(at.width, at.height);
    canvas.text(MARGIN, MARGIN, 2, INK, &title);
    draw_matrix(&mut canvas, &at, matrix, &leaves);
    frame_sets(&mut canvas, &at, &leaves, sets);
    draw_node(&mut canvas, &at, &tree.root, &mut 0, sets, at.cell * leaves.len());
    canvas
}

fn title(name: &str, sets: &Sets) -> String {
    let list = |set: &Vec<u32>| set.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let name = if name.is_empty() { String::new() } else { format!("{name}  ") };
    format!("{name}sets: {}", sets.iter().map(list).collect::<Vec<_>>().join("  "))
}

/// The vCPUs in the order in which the tree has them.
fn leaves(node: &Node) -> Vec<u32> {
    match node {
        Node::Vcpu(vcpu) => vec![*vcpu],
        Node::Pair { left, right, .. } => [leaves(left), leaves(right)].concat(),
    }
}

/// How many joins are above one another.
fn height(node: &Node) -> usize {
    match node {
        Node::Vcpu(_) => 0,
        Node::Pair { left, right, .. } => 1 + height(left).max(height(right)),
    }
}

/// A count in so few letters that it fits.
fn short(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

fn draw_matrix(canvas: &mut Canvas, at: &Layout, matrix: &Matrix, leaves: &[u32]) {
    let pairs = leaves.iter().flat_map(|x| leaves.iter().map(|y| (*x as usize, *y as usize)));
    let most = pairs.filter(|(x, y)| x != y).map(|(x, y)| matrix.get(x, y)).max().unwrap_or(0).max(1);
    // Not every number, where there is no room for all.
    let widest = canvas::text_width(&(leaves.len() - 1).to_string(), at.scale) + 4;
    let every = widest.div_ceil(at.cell);
    for (row, x) in leaves.iter().enumerate() {
        let (along, number) = (row * at.cell, x.to_string());
        let middle = |length: usize| along + at.cell.saturating_sub(length) / 2;
        if row % every == 0 {
            let width = canvas::text_width(&number, at.scale);
            let high = at.scale * GLYPH_HEIGHT;
            canvas.text(at.left - 8 - width, at.top + middle(high), at.scale, INK, &number);
            canvas.text(at.left + middle(width), at.top - 6 - high, at.scale, INK, &number);
        }
        for (column, y) in leaves.iter().enumerate() {
            let (left, top) = (at.left + column * at.cell, at.top + along);
            // A line of paper between cells, where they are large enough for that.
            let size = at.cell - usize::from(at.cell > 8);
            if x == y {
                canvas.fill(left, top, size, size, PALE);
                continue;
            }
            let count = matrix.get(*x as usize, *y as usize);
            // By the root, so that few events are told from none.
            let colour = canvas::shade((count as f64 / most as f64).sqrt());
            canvas.fill(left, top, size, size, colour);
            let text = short(count);
            let width = canvas::text_width(&text, at.scale);
            if width + 2 <= size && at.scale * GLYPH_HEIGHT + 2 <= size {
                let (right, down) = ((size - width) / 2, (size - at.scale * GLYPH_HEIGHT) / 2);
                canvas.text(left + right, top + down, at.scale, canvas::on(colour), &text);
            }
        }
    }
}

/// Who is in which set, by place in `sets`.
fn set_of(sets: &Sets, vcpu: u32) -> Option<usize> {
    sets.iter().position(|set| set.contains(&vcpu))
}

fn frame_sets(canvas: &mut Canvas, at: &Layout, leaves: &[u32], sets: &Sets) {
    let mut start = 0;
    // A set is a subtree, so its leaves are beside one another.
    for set in leaves.chunk_by(|a, b| set_of(sets, *a) == set_of(sets, *b)) {
        if set.len() > 1 {
            let (along, size) = (start * at.cell, set.len() * at.cell);
            canvas.frame(at.left + along, at.top + along, size, size, MARK);
        }
        start += set.len();
    }
}

/// Draw a subtree, whose first leaf is the row `next`; return where its line ends, to the right and down.
fn draw_node(
    canvas: &mut Canvas,
    at: &Layout,
    node: &Node,
    next: &mut usize,
    sets: &Sets,
    side: usize,
) -> (usize, usize) {
    let start = at.left + side + 12;
    let Node::Pair { d, left, right } = node else {
        *next += 1;
        return (start, at.top + (2 * *next - 1) * at.cell / 2);
    };
    let ends = [left, right].map(|part| draw_node(canvas, at, part, next, sets, side));
    let all = node.vcpus();
    // What is within a set is drawn as that is framed.
    let colour = if all.iter().all(|vcpu| set_of(sets, *vcpu) == set_of(sets, all[0])) { MARK } else { INK };
    let x = start + at.step * height(node);
    for (end, y) in ends {
        canvas.fill(end, y, x - end, 2, colour);
    }
    let (upper, lower) = (ends[0].1, ends[1].1);
    canvas.fill(x, upper, 2, lower - upper + 2, colour);
    let y = (upper + lower) / 2;
    if at.cell > at.scale * GLYPH_HEIGHT {
        let text = depends(*d);
        canvas.text(x + 6, y.saturating_sub(at.scale * GLYPH_HEIGHT + 3), at.scale, colour, &text);
    }
    canvas.fill(x, y, at.step / 3, 2, colour);
    (x, y)
}

/// A mean of counts.
fn depends(d: f64) -> String {
    match d {
        d if d >= 1_000.0 => short(d as u64),
        d if d >= 10.0 || d.fract() == 0.0 => format!("{d:.0}"),
        d => format!("{d:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::PAPER;
    use super::*;

    fn drawn(text: &str) -> (Canvas, Sets) {
        let matrix = Matrix::parse(text).unwrap();
        let tree = Tree::of(&matrix).unwrap();
        let sets = tree.sets(1.5);
        let canvas = draw("web", &matrix, &tree, &sets);
        assert_eq!(size("web", &tree, &sets), canvas.size());
        (canvas, sets)
    }

    #[test]
    fn sets_are_squares_on_the_diagonal() {
        // 0 and 2 are a pair, and 1 and 3: the tree has them beside one another.
        let (canvas, sets) = drawn("- 1 90 1\n1 - 1 90\n90 1 - 1\n1 90 1 -\n");
        assert_eq!(sets, [vec![0, 2], vec![1, 3]]);
        let (left, top) =
            (MARGIN + canvas::text_width("3", 2) + 8, MARGIN + 2 * GLYPH_HEIGHT + 16 + 2 * GLYPH_HEIGHT);
        let cell =
            |row: usize, column: usize| canvas.at(left + column * CELL_MAX + 3, top + row * CELL_MAX + 3);
        assert_eq!((cell(0, 0), cell(0, 1), cell(2, 3)), (PALE, canvas::shade(1.0), canvas::shade(1.0)));
        assert_eq!(cell(0, 2), canvas::shade((1.0f64 / 90.0).sqrt()));
        assert_eq!(canvas.at(left - 1, top + CELL_MAX), MARK);
        assert_eq!(canvas.at(left - 1, top + 3 * CELL_MAX), PAPER);
    }

    #[test]
    fn one_vcpu_and_many_can_be_drawn() {
        drawn("-\n");
        let line = |x: usize| (0..256).map(|y| (x.abs_diff(y) % 7).to_string()).collect::<Vec<_>>().join(" ");
        drawn(&(0..256).map(line).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn counts_are_short() {
        assert_eq!([short(999), short(1_000), short(45_678), short(9_000_000)], ["999", "1k", "45k", "9M"]);
        assert_eq!([depends(0.0), depends(1.25), depends(12.5), depends(4_321.0)], ["0", "1.2", "12", "4k"]);
    }
}
