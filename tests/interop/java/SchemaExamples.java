import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.TreeSet;
import java.util.jar.JarFile;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.BaseRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.metadata.MetadataRecordSerde;

/**
 * One example of each generated message class of Kafka in each version: its bytes, and its fields by Kafka's converter.
 *
 * Arguments: "records" (what is kept in logs and small files) or "messages" (requests, responses and their headers).
 * Values are made from a counter, so that two runs print the same. Variants: "full" has no field at its default,
 * "nulls" has null wherever null may be, "default" is untouched, "unknown" carries a tagged field that nobody knows.
 */
public final class SchemaExamples {
    private static int counter;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        boolean messages = args[0].equals("messages");
        for (String name : classes()) {
            String simple = name.substring(name.lastIndexOf('.') + 1);
            boolean wire = simple.endsWith("RequestData") || simple.endsWith("ResponseData") || simple.equals("RequestHeaderData") || simple.equals("ResponseHeaderData");
            if (wire != messages) continue;
            Class<?> type = Class.forName(name);
            Schema[] schemas = (Schema[]) type.getField("SCHEMAS").get(null);
            for (short version = 0; version < schemas.length; version++) {
                if (schemas[version] == null) continue;
                TreeSet<String> seen = new TreeSet<>();
                for (String variant : List.of("full", "nulls", "default", "unknown")) {
                    counter = 0;
                    Message message = (Message) type.getDeclaredConstructor().newInstance();
                    boolean touched = fill(message, schemas[version], variant, 0);
                    if (variant.equals("unknown")) {
                        if (!flexible(schemas[version])) continue;
                        byte[] tag = "tag nobody knows".getBytes(StandardCharsets.UTF_8);
                        message.unknownTaggedFields().add(new RawTaggedField(9999, tag));
                    }
                    String hex;
                    try {
                        hex = hex(message, version);
                    } catch (RuntimeException unwritable) {
                        if (variant.equals("default")) continue;
                        throw new IllegalStateException(name + " v" + version + " " + variant, unwritable);
                    }
                    if (!seen.add(hex)) continue;
                    ObjectNode line = Json.MAPPER.createObjectNode();
                    line.put("name", simple);
                    line.put("package", name.substring(0, name.lastIndexOf('.')));
                    if (message instanceof ApiMessage) line.put("key", ((ApiMessage) message).apiKey());
                    line.put("version", version);
                    line.put("variant", variant);
                    line.put("hex", hex);
                    if (name.startsWith("org.apache.kafka.common.metadata.")) line.put("framed", framed((ApiMessage) message, version));
                    line.set("json", json(type, message, version));
                    out.println(line);
                }
            }
        }
        out.flush();
    }

    private static TreeSet<String> classes() throws Exception {
        TreeSet<String> names = new TreeSet<>();
        for (String path : System.getProperty("java.class.path").split(java.io.File.pathSeparator)) {
            if (!path.contains("kafka")) continue;
            try (JarFile jar = new JarFile(path)) {
                jar.stream().map(each -> each.getName()).filter(each -> each.endsWith("JsonConverter.class") && !each.contains("$"))
                    .filter(each -> each.startsWith("org/apache/kafka/") && !each.contains("connect"))
                    .forEach(each -> names.add(each.substring(0, each.length() - "JsonConverter.class".length()).replace('/', '.')));
            }
        }
        return names;
    }

    private static String hex(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        if (buffer.hasRemaining()) throw new IllegalStateException("size and bytes differ");
        return HexFormat.of().formatHex(buffer.array());
    }

    private static String framed(ApiMessage message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ApiMessageAndVersion record = new ApiMessageAndVersion(message, version);
        ByteBuffer buffer = ByteBuffer.allocate(new MetadataRecordSerde().recordSize(record, cache));
        new MetadataRecordSerde().write(record, cache, new ByteBufferAccessor(buffer));
        return HexFormat.of().formatHex(buffer.array());
    }

    private static JsonNode json(Class<?> type, Message message, short version) throws Exception {
        Class<?> converter = Class.forName(type.getName() + "JsonConverter");
        return (JsonNode) converter.getMethod("write", type, short.class, boolean.class).invoke(null, message, version, false);
    }

    private static boolean flexible(Schema schema) {
        for (BoundField field : schema.fields()) if (field.def.type instanceof TaggedFields) return true;
        return false;
    }

    private static boolean fill(Object struct, Schema schema, String variant, int depth) throws Exception {
        if (variant.equals("default")) return false;
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                for (var tagged : ((TaggedFields) field.def.type).fields().values()) set(struct, tagged.name, tagged.type, variant, depth);
            } else {
                set(struct, field.def.name, field.def.type, variant, depth);
            }
        }
        return true;
    }

    private static void set(Object struct, String name, Type type, String variant, int depth) throws Exception {
        Field field = find(struct.getClass(), name);
        if (variant.equals("nulls") && type.isNullable()) {
            field.set(struct, null);
            return;
        }
        field.set(struct, value(field.getType(), field.getGenericType(), field.get(struct), name, type, variant, depth));
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object value(Class<?> javaType, java.lang.reflect.Type generic, Object byDefault, String name, Type type, String variant, int depth)
        throws Exception {
        int number = ++counter;
        if (type.isArray()) {
            Class<?> elementClass;
            Collection collection;
            if (javaType == List.class) {
                elementClass = raw(((ParameterizedType) generic).getActualTypeArguments()[0]);
                collection = new ArrayList<>();
            } else {
                elementClass = raw(((ParameterizedType) javaType.getGenericSuperclass()).getActualTypeArguments()[0]);
                collection = (Collection) javaType.getDeclaredConstructor().newInstance();
            }
            Type element = type.arrayElementType().get();
            for (int i = 0; i < (depth < 1 ? 2 : 1); i++) {
                collection.add(value(elementClass, null, null, name, element, variant, depth + 1));
            }
            return collection;
        }
        if (type instanceof Schema) {
            Object struct = javaType.getDeclaredConstructor().newInstance();
            fill(struct, (Schema) type, variant, depth);
            return struct;
        }
        if (javaType == boolean.class || javaType == Boolean.class) return byDefault == null ? number % 2 == 0 : !(Boolean) byDefault;
        if (javaType == byte.class || javaType == Byte.class) return (byte) (number % 100 + 1);
        if (javaType == short.class || javaType == Short.class) return (short) (number + 300);
        if (javaType == int.class || javaType == Integer.class) return type == Type.UINT16 ? number + 40_000 : number + 70_000;
        if (javaType == long.class || javaType == Long.class) return type == Type.UNSIGNED_INT32 ? number + 3_000_000_000L : -5_000_000_000L - number;
        if (javaType == double.class || javaType == Double.class) return number + 0.25;
        if (javaType == Uuid.class) return new Uuid(0x0123456789abcdefL + number, 0xfedcba9876543210L - number);
        if (javaType == String.class) return name + "-\u00e9-" + number;
        if (javaType == byte[].class) return new byte[] {(byte) number, 0, (byte) 0xff};
        if (javaType == ByteBuffer.class) return ByteBuffer.wrap(new byte[] {(byte) number, 0, (byte) 0xff});
        if (BaseRecords.class.isAssignableFrom(javaType)) {
            return MemoryRecords.withRecords(Compression.NONE, new SimpleRecord(1_700_000_000_000L + number, "key".getBytes(), "value".getBytes()));
        }
        throw new IllegalStateException("no value for " + name + " of " + javaType);
    }

    private static Class<?> raw(java.lang.reflect.Type type) throws ClassNotFoundException {
        return type instanceof Class ? (Class<?>) type : (Class<?>) ((ParameterizedType) type).getRawType();
    }

    private static Field find(Class<?> type, String name) {
        String wanted = name.replace("_", "").toLowerCase(Locale.ROOT);
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) && field.getName().toLowerCase(Locale.ROOT).equals(wanted)) {
                field.setAccessible(true);
                return field;
            }
        }
        throw new IllegalStateException(type + " has no field " + name);
    }
}
