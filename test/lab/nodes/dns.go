// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"encoding/binary"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	clusterDomain = "cluster.local."
	dnsTTL        = 5
	dnsTCPIdle    = 10 * time.Second
)

// dnsServer resolves the names of Services, as described in the Kubernetes DNS specification. It serves A records for
// Services, and for the pods of headless Services that have a host name. It serves no SRV or PTR records, and
// forwards no queries, because a lab has no other names.
type dnsServer struct {
	services  corelisters.ServiceLister
	endpoints discoverylisters.EndpointSliceLister
}

// runDNS serves DNS on UDP and TCP until an error occurs. Its arguments are a kubeconfig and the address.
func runDNS(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: dns KUBECONFIG ADDRESS")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	server := dnsServer{services: factory.Core().V1().Services().Lister(), endpoints: factory.Discovery().V1().EndpointSlices().Lister()}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	packets, err := net.ListenPacket("udp4", args[1])
	if err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	streams, err := net.Listen("tcp4", args[1])
	if err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	ended := make(chan error)
	go func() { ended <- server.servePackets(packets) }()
	go func() { ended <- server.serveStreams(streams) }()
	return <-ended
}

func (d dnsServer) servePackets(conn net.PacketConn) error {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("serve DNS: %w", err)
		}
		if response := d.respond(buf[:n]); response != nil {
			_, _ = conn.WriteTo(response, from) // if the response is lost, the client asks again
		}
	}
}

func (d dnsServer) serveStreams(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("serve DNS: %w", err)
		}
		go d.serveStream(conn)
	}
}

// serveStream responds to queries on one TCP connection. Each query is preceded by its length in two bytes.
func (d dnsServer) serveStream(conn net.Conn) {
	defer conn.Close()
	for {
		if err := conn.SetDeadline(time.Now().Add(dnsTCPIdle)); err != nil {
			return
		}
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		response := d.respond(query)
		if response == nil {
			return
		}
		binary.BigEndian.PutUint16(length[:], uint16(len(response)))
		if _, err := conn.Write(append(length[:], response...)); err != nil {
			return
		}
	}
}

// respond returns the response to a query. It returns nil if the message is not a query.
func (d dnsServer) respond(query []byte) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil || header.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	addresses, found := d.lookUp(strings.ToLower(question.Name.String()))
	response := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	if !found {
		response.RCode = dnsmessage.RCodeNameError
	}
	if question.Type == dnsmessage.TypeA {
		for _, address := range addresses {
			response.Answers = append(response.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: dnsTTL},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	packed, err := response.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// lookUp returns the addresses for a name, and reports whether the name exists.
func (d dnsServer) lookUp(name string) ([]netip.Addr, bool) {
	rest, inside := strings.CutSuffix(name, ".svc."+clusterDomain)
	if !inside {
		return nil, false
	}
	parts := strings.Split(rest, ".")
	if len(parts) != 2 && len(parts) != 3 { // the format is [host.]service.namespace
		return nil, false
	}
	host, service, namespace := "", parts[len(parts)-2], parts[len(parts)-1]
	if len(parts) == 3 {
		host = parts[0]
	}
	found, err := d.services.Services(namespace).Get(service)
	if err != nil {
		return nil, false
	}
	if found.Spec.ClusterIP != corev1.ClusterIPNone {
		address, err := netip.ParseAddr(found.Spec.ClusterIP)
		if err != nil || host != "" || !address.Is4() {
			return nil, false
		}
		return []netip.Addr{address}, true
	}
	slices, err := d.endpoints.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil, false
	}
	addresses := ready(slices, host, found.Spec.PublishNotReadyAddresses)
	return addresses, host == "" || len(addresses) > 0
}

// ready returns the IPv4 addresses of the ready endpoints, or of all endpoints if all is true. If host is not empty,
// only endpoints with that host name count.
func ready(slices []*discoveryv1.EndpointSlice, host string, all bool) []netip.Addr {
	var addresses []netip.Addr
	for _, slice := range slices {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			isReady := all || endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			if !isReady || (host != "" && (endpoint.Hostname == nil || *endpoint.Hostname != host)) {
				continue
			}
			for _, a := range endpoint.Addresses {
				if address, err := netip.ParseAddr(a); err == nil {
					addresses = append(addresses, address)
				}
			}
		}
	}
	return addresses
}
