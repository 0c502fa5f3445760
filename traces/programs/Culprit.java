// A program with a known cause of shootdowns, for `cargo xtask soak culprits`: it maps a file for
// each request, and unmaps it afterwards, beside a thread that computes. With the argument
// `changed`, it maps the file once. It needs CPUs 0 and 1, and `taskset`.
import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import sun.misc.Unsafe;

public class Culprit {
    static final int REQUESTS = 10_000, PAGE_BYTES = 4096, FILE_PAGES = 64;
    static volatile boolean started, stop;
    static Unsafe unsafe;

    static MappedByteBuffer openFile(FileChannel file) throws IOException {
        return file.map(FileChannel.MapMode.READ_ONLY, 0, FILE_PAGES * PAGE_BYTES);
    }

    static void closeFile(MappedByteBuffer data) {
        unsafe.invokeCleaner(data);
    }

    static int sum(MappedByteBuffer data) {
        int total = 0;
        for (int page = 0; page < FILE_PAGES; page++) total += data.get(page * PAGE_BYTES);
        return total;
    }

    static int serve(FileChannel file, int requests, boolean changed) throws IOException {
        MappedByteBuffer data = openFile(file);
        int total = 0;
        for (int request = 0; request < requests; request++) {
            total += sum(data);
            if (!changed) {
                closeFile(data);
                data = openFile(file);
            }
        }
        closeFile(data);
        return total;
    }

    static void compute() {
        pin(1);
        started = true;
        for (long steps = 0; !stop; steps++) {}
    }

    /// Java has no call for this.
    static void pin(int cpu) {
        try {
            Path thread = Files.readSymbolicLink(Path.of("/proc/thread-self")).getFileName();
            String number = thread.toString();
            new ProcessBuilder("taskset", "-cp", Integer.toString(cpu), number).start().waitFor();
        } catch (IOException | InterruptedException exception) {
            throw new RuntimeException(exception);
        }
    }

    public static void main(String[] words) throws Exception {
        boolean changed = words.length == 2 && words[1].equals("changed");
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        unsafe = (Unsafe) field.get(null);
        Path path = Files.createTempFile("culprit", null);
        Files.write(path, new byte[FILE_PAGES * PAGE_BYTES]);
        try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
            pin(0);
            Thread other = new Thread(Culprit::compute);
            other.start();
            while (!started) Thread.onSpinWait();
            int total = serve(file, REQUESTS, changed);
            stop = true;
            other.join();
            System.err.println(total);
        } finally {
            Files.delete(path);
        }
    }
}
