// Calls a vendor from a program that paces itself: each call asks Paceway first (docs/services/decisions.md).
//
//     java examples/decisions/Acquire.java http://127.0.0.1:8084 search 8
//
// asks for 8 permits of the limiter `search`, one after the other, and makes a pretend call for each. Java 11 or later is
// needed, and no library. PACEWAY_TOKEN has the token, if the service has one.

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Acquire {
    private static final HttpClient CLIENT =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    private final String url;

    Acquire(String url) {
        this.url = url;
    }

    String ask(String name, String body, Duration timeout) throws IOException, InterruptedException {
        HttpRequest.Builder request =
                HttpRequest.newBuilder(URI.create(url + "/v1/" + name))
                        .timeout(timeout)
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body));
        String token = System.getenv("PACEWAY_TOKEN");
        if (token != null) {
            request.header("Paceway-Token", token);
        }
        HttpResponse<String> answer =
                CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(answer.statusCode() + ": " + answer.body());
        }
        return answer.body();
    }

    /** Waits for a permit. The time-out is above the longest wait, so that the decision always comes. */
    String acquire(String limiter, long maxWaitMs) throws IOException, InterruptedException {
        String body =
                "{\"limiters\": [{\"limiter\": \"" + limiter + "\"}], \"wait\": true, \"max_wait_ms\": " + maxWaitMs + "}";
        return ask("acquire", body, Duration.ofMillis(maxWaitMs).plusSeconds(10));
    }

    /** A value of a flat JSON object. A program of yours has a JSON library for this. */
    static String value(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\"?([^,\"}]*)").matcher(json);
        return found.find() ? found.group(1) : "";
    }

    static String callVendor(int number) throws IOException {
        return "answer " + number;
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Acquire paceway = new Acquire(arguments[0]);
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            String decision = paceway.acquire(arguments[1], 2000);
            if (value(decision, "limited").equals("true")) {
                System.out.println("refused; come back in " + value(decision, "retry_after_ms") + " ms");
                continue;
            }
            try {
                System.out.println(callVendor(number) + ", after " + value(decision, "waited_ms") + " ms");
            } catch (IOException failed) {
                // Nothing was sent, so that another call may have the permit.
                String reservation = "{\"reservation\": \"" + value(decision, "reservation") + "\"}";
                paceway.ask("refund", reservation, Duration.ofSeconds(10));
                throw failed;
            }
        }
    }
}
