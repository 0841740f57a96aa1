import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's own Java clients, driven from another process: a JSON object per line in, one per line out.
 *
 * A request is {"id", "do", "on", ...}: what to do, and the name of the producer or consumer to do it on. Requests
 * on one name run in order on a thread of its own; all others run side by side. The answer is {"id", "ok"} or
 * {"id", "error"}.
 */
public final class ClientHost {
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();
    private static final ExecutorService POOL = Executors.newCachedThreadPool(ClientHost::daemon);
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ClientActions clients = new ClientActions();
        AdminActions admins = new AdminActions();
        String line;
        while ((line = in.readLine()) != null) {
            JsonNode request = Json.MAPPER.readTree(line);
            ExecutorService thread = request.hasNonNull("on")
                ? THREADS.computeIfAbsent(request.get("on").asText(), name -> Executors.newSingleThreadExecutor(ClientHost::daemon))
                : POOL;
            thread.execute(() -> answer(request, clients, admins));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Thread daemon(Runnable run) {
        Thread thread = new Thread(run);
        thread.setDaemon(true);
        return thread;
    }

    private static void answer(JsonNode request, ClientActions clients, AdminActions admins) {
        ObjectNode reply = Json.MAPPER.createObjectNode();
        reply.set("id", request.get("id"));
        try {
            String action = request.get("do").asText();
            Object result = action.equals("tool") ? tool(request) : action.startsWith("admin.") ? admins.run(action, request) : clients.run(action, request);
            reply.set("ok", Json.of(result));
        } catch (Throwable problem) {
            reply.set("error", error(problem));
        }
        synchronized (out) {
            out.println(reply);
            out.flush();
        }
    }

    /** Run one of Kafka's tools in this JVM; they print to standard output, so only one at a time. */
    private static synchronized Object tool(JsonNode request) throws Exception {
        java.io.ByteArrayOutputStream printed = new java.io.ByteArrayOutputStream();
        PrintStream before = System.out;
        Integer[] code = {null};
        Exit.Procedure exit = (status, message) -> {
            // The first exit counts: some tools take the exception that follows for a failure of theirs.
            if (code[0] == null) code[0] = status;
            throw new ToolExit();
        };
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        try {
            Class.forName(request.get("main").asText()).getMethod("main", String[].class)
                .invoke(null, (Object) Json.strings(request.get("args")).toArray(new String[0]));
        } catch (java.lang.reflect.InvocationTargetException problem) {
            if (!(problem.getCause() instanceof ToolExit)) throw new java.util.concurrent.ExecutionException(problem.getCause());
        } finally {
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            System.setOut(before);
        }
        return Map.of("code", code[0] == null ? 0 : code[0], "out", printed.toString(StandardCharsets.UTF_8));
    }

    private static final class ToolExit extends RuntimeException { }

    static ObjectNode error(Throwable problem) {
        Throwable cause = problem;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Errors known = Errors.forException(cause);
        ObjectNode node = Json.MAPPER.createObjectNode();
        node.put("class", cause.getClass().getName());
        node.put("name", known.name());
        node.put("code", known.code());
        node.put("message", String.valueOf(cause.getMessage()));
        if (known == Errors.UNKNOWN_SERVER_ERROR) {
            java.io.StringWriter trace = new java.io.StringWriter();
            cause.printStackTrace(new java.io.PrintWriter(trace));
            node.put("trace", trace.toString());
        }
        return node;
    }
}
