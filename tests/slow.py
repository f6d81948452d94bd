"""Slow, obvious versions to test the fast ones against: one row and one field at a time."""

import math

import torch


def mixed_row_by_row(x, widths, gates, permutations):
    """Return x~_i[b] = g_i x_i[b] + (1 - g_i) x_i[pi_i(b)] and both divergences, by plain loops."""
    rows = x.shape[0]
    output = torch.empty_like(x)
    distance = []
    square = []
    start = 0
    for width, gate, permutation in zip(widths, gates, permutations, strict=True):
        total = total_square = 0.0
        for row in range(rows):
            other = int(permutation[row])
            change = 0.0
            for column in range(start, start + width):
                clean = float(x[row, column])
                shuffled = float(x[other, column])
                output[row, column] = float(gate) * clean + (1 - float(gate)) * shuffled
                change += (clean - shuffled) ** 2
            total += math.sqrt(change)
            total_square += change
        distance.append(total / rows)
        square.append(total_square / rows)
        start += width
    return output, distance, square


def shuffled_by_hand(stream, rows):
    """Return Fisher and Yates' inside-out shuffle; a 64-bit hash of the stream decides two rows."""
    mask = (1 << 64) - 1
    order = [0] * rows
    for row in range(rows):
        value = (stream + 0x9E3779B97F4A7C15 * (row // 2)) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        value ^= value >> 31
        drawn = value >> 32 if row % 2 else value & 0xFFFFFFFF
        other = drawn * (row + 1) >> 32
        order[row] = order[other]
        order[other] = row
    return order


def bias_corrected_average(values, momentum):
    """Return the exponentially weighted mean of all values so far."""
    weights = [momentum ** (len(values) - 1 - step) for step in range(len(values))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def auc_by_pairs(labels, scores):
    """Return how often a positive row outranks a negative one, pair by pair."""
    wins = pairs = 0.0
    for label, score in zip(labels, scores, strict=True):
        for other_label, other in zip(labels, scores, strict=True):
            if label == 1 and other_label == 0:
                pairs += 1
                if score == other:
                    wins += 0.5
                elif score > other:
                    wins += 1.0
    if not pairs:
        return None
    return wins / pairs


def jackknife(statistic, units):
    """Return a statistic of rows with its standard error, from leaving out one unit at a time.

    `statistic` takes the numbers of rows; `units` has the unit of each row.
    """
    everything = [row for row, _ in enumerate(units)]
    value = statistic(everything)
    names = sorted(set(units.tolist()))
    squares = 0.0
    for name in names:
        others = [row for row in everything if units[row] != name]
        squares += (statistic(others) - value) ** 2
    return value, math.sqrt((len(names) - 1) / len(names) * squares)


def change_inside(metric, before, after, rows):
    """Return the gain of a metric and its standard error in some rows, by leaving out each unit."""
    labels = [float(before.label[row]) for row in rows]
    units = torch.tensor(rows) if before.group is None else before.group[rows]

    def gain(places):
        values = []
        for model in (before, after):
            numbers = torch.tensor([rows[place] for place in places])
            part = type(model)(
                model.label[numbers],
                model.output[numbers],
                model.prediction[numbers],
                None if model.group is None else model.group[numbers],
            )
            values.append(metric.compute(part))
        return metric.gain(values[1] - values[0])

    return jackknife(gain, units) if len(set(labels)) > 1 else None
