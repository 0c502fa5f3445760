// Runs threads that allocate arrays and keep some of them, so that the collector's threads are busy.
import java.util.ArrayList;
import java.util.List;

public class Churn {
    static void work(int worker) {
        List<int[]> kept = new ArrayList<>();
        for (int i = 0; i < 20_000; i++) {
            int[] numbers = new int[256];
            numbers[i % 256] = worker;
            if (i % 16 == 0) kept.add(numbers);
            if (kept.size() > 200) kept.clear();
        }
    }

    public static void main(String[] words) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Math.min(Integer.parseInt(words[0]), 8); i++) {
            int worker = i;
            threads.add(new Thread(() -> work(worker)));
        }
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        System.out.println(threads.size());
    }
}
