import java.util.List;
import java.util.Map;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.SchemaMetadata;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;

/** Registers, evolves, looks up and deletes with Confluent's Java client; prints one line per step. */
public class RegistryActions {
    public static void main(String[] args) throws Exception {
        Map<String, String> login = Map.of("basic.auth.credentials.source", "USER_INFO", "basic.auth.user.info", args[1]);
        var client = new CachedSchemaRegistryClient(List.of(args[0]), 100, login);
        String order = "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"id\",\"type\":\"string\"}]}";
        String wider = "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"id\",\"type\":\"string\"},"
            + "{\"name\":\"note\",\"type\":\"string\",\"default\":\"\"}]}";
        String broken = "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"n\",\"type\":\"int\"}]}";
        String item = "{\"type\":\"record\",\"name\":\"Line\",\"fields\":[{\"name\":\"order\",\"type\":\"Order\"}]}";
        System.out.println("register " + client.register("orders-value", new AvroSchema(order)));
        System.out.println("again " + client.register("orders-value", new AvroSchema(order)));
        System.out.println("compatible " + client.testCompatibility("orders-value", new AvroSchema(wider)));
        System.out.println("evolve " + client.register("orders-value", new AvroSchema(wider)));
        System.out.println("verbose " + client.testCompatibilityVerbose("orders-value", new AvroSchema(broken)).size());
        try {
            client.register("orders-value", new AvroSchema(broken));
            System.out.println("broken accepted");
        } catch (RestClientException error) {
            System.out.println("broken " + error.getStatus() + " " + error.getErrorCode());
        }
        var reference = new SchemaReference("Order", "orders-value", 1);
        var line = new AvroSchema(item, List.of(reference), Map.of("Order", order), null);
        System.out.println("reference " + client.register("lines-value", line));
        System.out.println("by id " + client.getSchemaById(2).canonicalString().equals(wider));
        SchemaMetadata latest = client.getLatestSchemaMetadata("orders-value");
        System.out.println("latest " + latest.getVersion() + " " + latest.getId());
        System.out.println("version " + client.getVersion("orders-value", new AvroSchema(order)));
        System.out.println("id " + client.getId("orders-value", new AvroSchema(wider)));
        System.out.println("compatibility " + client.updateCompatibility("orders-value", "FULL"));
        System.out.println("mode " + client.getMode());
        System.out.println("subjects " + client.getAllSubjects());
        System.out.println("versions " + client.getAllVersions("orders-value"));
        System.out.println("deleted " + client.deleteSubject("lines-value"));
        System.out.println("permanently " + client.deleteSubject("lines-value", true));
        try {
            client.getLatestSchemaMetadata("lines-value");
        } catch (RestClientException error) {
            System.out.println("missing " + error.getStatus() + " " + error.getErrorCode());
        }
    }
}
