import java.util.Arrays;
import java.util.List;

/**
 * One Kafka node that formats its directory if asked to and dies with its parent.
 *
 * Arguments: options of StorageTool's format command (or none), "--", then those of kafka.Kafka. When standard
 * input ends, the process that started us is gone, and so are we.
 */
public final class KafkaNode {
    public static void main(String[] args) throws Exception {
        Thread parent = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException ignored) {
                // the pipe broke: the same as its end
            }
            Runtime.getRuntime().halt(3);
        }, "parent-watch");
        parent.setDaemon(true);
        parent.start();
        List<String> all = Arrays.asList(args);
        int split = all.indexOf("--");
        if (split > 0) {
            int code = kafka.tools.StorageTool.execute(all.subList(0, split).toArray(new String[0]), System.err);
            if (code != 0) {
                System.exit(code);
            }
        }
        kafka.Kafka.main(all.subList(split + 1, all.size()).toArray(new String[0]));
    }
}
