// The echo server and client of echo.go for the JVM: same messages, same checksum.

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;

public class Echo {
    static void serve() throws IOException {
        ServerSocket listener = new ServerSocket(0, 16, InetAddress.getByName("127.0.0.1"));
        System.out.println("port " + listener.getLocalPort());
        while (true) {
            Socket socket = listener.accept();
            new Thread(() -> {
                try (socket) {
                    socket.getInputStream().transferTo(socket.getOutputStream());
                } catch (IOException error) {
                    System.err.println(error);
                }
            }).start();
        }
    }

    static void talk(int port) throws IOException {
        long sum = 0xcbf29ce484222325L;
        try (Socket socket = new Socket("127.0.0.1", port)) {
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            for (int i = 0; i < 2000; i++) {
                byte[] message = new byte[1 + i * 37 % 5000];
                for (int at = 0; at < message.length; at++) {
                    message[at] = (byte) (i + at * 7);
                }
                out.write(message);
                byte[] answer = in.readNBytes(message.length);
                if (!Arrays.equals(answer, message)) {
                    throw new IOException("message " + i + " came back changed");
                }
                for (byte b : answer) {
                    sum = (sum ^ (b & 0xff)) * 0x100000001b3L;
                }
            }
            socket.shutdownOutput();
            if (in.read() != -1) {
                throw new IOException("bytes after the last message");
            }
        }
        System.out.println(String.format("sum %016x", sum));
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments[0].equals("server")) {
            serve();
        } else {
            talk(Integer.parseInt(arguments[1]));
        }
    }
}
