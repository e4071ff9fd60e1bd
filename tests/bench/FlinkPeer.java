import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Run Flink SQL in one warm JVM: a line of standard input is a job, its statements parted by tabs.
 *
 * <p>Arguments are settings as `key=value`. Each job has a mini cluster of its own and is answered
 * by one line, `done` or what went wrong. The end of standard input ends the process.
 */
public final class FlinkPeer {
    private FlinkPeer() {}

    public static void main(String[] settings) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever else prints must not look like an answer
        Map<String, String> pairs = new HashMap<>();
        for (String setting : settings) {
            String[] pair = setting.split("=", 2);
            pairs.put(pair[0], pair[1]);
        }
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
        for (String job = jobs.readLine(); job != null; job = jobs.readLine()) {
            answers.println(run(job, Configuration.fromMap(pairs)));
        }
        System.exit(0); // Flink leaves threads behind
    }

    private static String run(String job, Configuration configuration) {
        try {
            StreamTableEnvironment tables =
                    StreamTableEnvironment.create(
                            StreamExecutionEnvironment.getExecutionEnvironment(configuration),
                            EnvironmentSettings.newInstance()
                                    .withConfiguration(configuration)
                                    .build());
            TableResult last = null;
            for (String statement : job.split("\t")) {
                last = tables.executeSql(statement);
            }
            last.await();
            return "done";
        } catch (Throwable problem) { // a missing class too must reach the reader
            problem.printStackTrace();
            return problem.toString().replace('\n', ' ');
        }
    }
}
