// Stands in for the kubelet: its own messages (k8s.io/kubelet), its own gRPC, and what it does with a device
// plugin. Commands come by standard input, and what happens goes to standard output, an object of JSON a line.
//
//	kubelet FOLDER
//
//	allocate ID... [/ ID...]   asks for devices, for each container between slashes
//	flood N                    asks for so many devices that are not there
//	lie                        says what no kubelet says, on connections of its own
//	restart                    begins anew: removes all sockets, and listens again
//	reopen                     listens at another socket of the same name, and knows nobody any more
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// In which a lie must have had its answer, on a machine that does much else.
const patience = 60 * time.Second

var printing sync.Mutex

func say(event string, more map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	more["event"] = event
	line, err := json.Marshal(more)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// What went wrong, as gRPC has it.
func code(err error) string { return status.Code(err).String() }

type kubelet struct {
	api.UnimplementedRegistrationServer
	folder string
	server *grpc.Server
	mutex  sync.Mutex
	plugin *grpc.ClientConn
	socket string
}

func (k *kubelet) Register(_ context.Context, asked *api.RegisterRequest) (*api.Empty, error) {
	say("registered", map[string]any{"resource": asked.ResourceName, "version": asked.Version, "endpoint": asked.Endpoint})
	socket := filepath.Join(k.folder, asked.Endpoint)
	// As pkg/kubelet/cm/devicemanager dials.
	plugin, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return nil, err
	}
	k.mutex.Lock()
	k.plugin, k.socket = plugin, socket
	k.mutex.Unlock()
	go watch(plugin)
	return &api.Empty{}, nil
}

func watch(plugin *grpc.ClientConn) {
	client := api.NewDevicePluginClient(plugin)
	options, err := client.GetDevicePluginOptions(context.Background(), &api.Empty{})
	if err != nil {
		say("options", map[string]any{"error": code(err)})
		return
	}
	say("options", map[string]any{"pre_start": options.PreStartRequired, "preferred": options.GetPreferredAllocationAvailable})
	stream, err := client.ListAndWatch(context.Background(), &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			healthy, ids := 0, []string{}
			for _, device := range list.Devices {
				ids = append(ids, device.ID)
				if device.Health == api.Healthy {
					healthy++
				}
			}
			say("devices", map[string]any{"ids": ids, "healthy": healthy})
		}
	}
	say("watched", map[string]any{"error": code(err)})
}

func (k *kubelet) start() {
	listener, err := net.Listen("unix", filepath.Join(k.folder, "kubelet.sock"))
	if err != nil {
		panic(err)
	}
	k.server = grpc.NewServer()
	api.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(listener)
}

func (k *kubelet) forget() {
	k.server.Stop()
	k.mutex.Lock()
	if k.plugin != nil {
		k.plugin.Close()
		k.plugin = nil
	}
	k.mutex.Unlock()
}

func (k *kubelet) restart() {
	k.forget()
	entries, err := os.ReadDir(k.folder)
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		os.Remove(filepath.Join(k.folder, entry.Name()))
	}
	k.start()
	say("restarted", map[string]any{})
}

func (k *kubelet) ask(asked *api.AllocateRequest) {
	k.mutex.Lock()
	plugin := k.plugin
	k.mutex.Unlock()
	if plugin == nil {
		say("allocated", map[string]any{"error": "NoPlugin"})
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := api.NewDevicePluginClient(plugin).Allocate(ctx, asked)
	if err != nil {
		say("allocated", map[string]any{"error": code(err)})
		return
	}
	say("allocated", map[string]any{"containers": answer.ContainerResponses})
}

// The number of gRPC in an answer, or what became of the connection.
func outcome(framer *http2.Framer) string {
	for {
		frame, err := framer.ReadFrame()
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, field := range frame.Fields {
				if field.Name == "grpc-status" {
					return "status " + field.Value
				}
			}
		case *http2.RSTStreamFrame:
			return "reset"
		case *http2.GoAwayFrame:
			return "closed"
		}
		var stream http2.StreamError
		if errors.As(err, &stream) {
			continue
		}
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "hung"
		}
		if err != nil {
			return "closed"
		}
	}
}

// A request by hand. What follows its headers is said by body.
func (k *kubelet) request(path, kind string, body func(*http2.Framer)) string {
	conn, err := net.Dial("unix", k.socket)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.AllowIllegalWrites = true
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "localhost"},
		{":path", path}, {"content-type", kind}, {"te", "trailers"}} {
		encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	body(framer)
	return outcome(framer)
}

// Bytes instead of HTTP/2.
func (k *kubelet) bytes(text []byte) string {
	conn, err := net.Dial("unix", k.socket)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	conn.Write(text)
	_, err = io.Copy(io.Discard, conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "hung"
	}
	return "closed"
}

func (k *kubelet) lie() {
	const allocate, kind = "/v1beta1.DevicePlugin/Allocate", "application/grpc"
	framed := func(compressed byte, length uint32, rest ...byte) func(*http2.Framer) {
		head := binary.BigEndian.AppendUint32([]byte{compressed}, length)
		return func(framer *http2.Framer) { framer.WriteData(1, true, append(head, rest...)) }
	}
	header := func(length uint32, kind byte, stream uint32) []byte {
		head := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, 0}
		return binary.BigEndian.AppendUint32(head, stream)
	}
	preface := []byte(http2.ClientPreface)
	settings := header(0, 4, 0)
	lies := map[string]string{
		"garbage":       k.bytes(bytes.Repeat([]byte("no HTTP at all\r\n"), 64)),
		"frame-of-16-M": k.bytes(append(append(preface, settings...), header(0xffffff, 0, 1)...)),
		"window-of-0":   k.bytes(append(append(preface, settings...), append(header(4, 8, 0), 0, 0, 0, 0)...)),
		"4-GiB":         k.request(allocate, kind, framed(0, 0xffffffff, 1, 2, 3)),
		"shorter":       k.request(allocate, kind, framed(0, 100, 10)),
		"longer":        k.request(allocate, kind, framed(0, 0, 10, 10)),
		"compressed":    k.request(allocate, kind, framed(1, 0)),
		"no-protobuf":   k.request(allocate, kind, framed(0, 3, 10, 200, 1)),
		"no-message":    k.request(allocate, kind, func(framer *http2.Framer) { framer.WriteData(1, true, nil) }),
		"no-method":     k.request("/v1beta1.DevicePlugin/Give", kind, framed(0, 0)),
		"no-service":    k.request("/v1.DevicePlugin/Allocate", kind, framed(0, 0)),
		"no-grpc":       k.request(allocate, "text/plain", framed(0, 0)),
		"reset": k.request("/v1beta1.DevicePlugin/ListAndWatch", kind, func(framer *http2.Framer) {
			framed(0, 0)(framer)
			framer.WriteRSTStream(1, http2.ErrCodeCancel)
			framer.WriteGoAway(0, http2.ErrCodeNo, nil)
			framer.WriteRawFrame(http2.FrameType(0), 0, 0, []byte("data of no stream"))
		}),
	}
	say("lied", map[string]any{"answers": lies})
}

func main() {
	k := &kubelet{folder: os.Args[1]}
	k.start()
	say("started", map[string]any{})
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "allocate":
			asked, container := &api.AllocateRequest{}, &api.ContainerAllocateRequest{}
			for _, word := range words[1:] {
				if word == "/" {
					asked.ContainerRequests = append(asked.ContainerRequests, container)
					container = &api.ContainerAllocateRequest{}
				} else {
					container.DevicesIDs = append(container.DevicesIDs, word)
				}
			}
			asked.ContainerRequests = append(asked.ContainerRequests, container)
			k.ask(asked)
		case "flood":
			count, _ := strconv.Atoi(words[1])
			container := &api.ContainerAllocateRequest{}
			for number := range count {
				container.DevicesIDs = append(container.DevicesIDs, fmt.Sprint("lane-", number))
			}
			k.ask(&api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{container}})
		case "lie":
			k.lie()
		case "restart":
			k.restart()
		case "reopen":
			k.forget()
			k.start()
			say("reopened", map[string]any{})
		}
	}
}
