// SPDX-License-Identifier: GPL-2.0-only
import java.util.Arrays;
import java.util.SplittableRandom;

/** Sorts and sums on all processors, and leaves work for the collector. */
public class Sort {
    public static void main(String[] args) {
        long sum = 0;
        for (int round = 0; round < 20; round++) {
            double[] numbers = new SplittableRandom(round).doubles(200_000).toArray();
            Arrays.parallelSort(numbers);
            sum += (long) (1e6 * Arrays.stream(numbers).parallel().sum());
        }
        System.out.println(sum);
    }
}
