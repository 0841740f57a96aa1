import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/** Reads pairs of lines (reader, writer); prints the canonical texts and the incompatibilities, separated by tabs. */
public final class AvroOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        String reader;
        while ((reader = in.readLine()) != null) {
            String writer = in.readLine();
            List<String> line = new ArrayList<>();
            try {
                Schema first = new Schema.Parser().parse(reader);
                Schema second = new Schema.Parser().parse(writer);
                line.add(first.toString());
                line.add(second.toString());
                SchemaCompatibility.checkReaderWriterCompatibility(first, second).getResult().getIncompatibilities()
                    .forEach(each -> line.add(each.getType() + " " + each.getLocation() + " " + each.getMessage()));
            } catch (RuntimeException error) {
                line.clear();
                line.add("refused");
            }
            out.println(line.stream().map(each -> each.replace('\t', ' ')).collect(Collectors.joining("\t")));
        }
    }
}
