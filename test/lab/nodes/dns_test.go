// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

func testDNS(t *testing.T) dnsServer {
	t.Helper()
	namespaced := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	services, slices := cache.NewIndexer(cache.MetaNamespaceKeyFunc, namespaced), cache.NewIndexer(cache.MetaNamespaceKeyFunc, namespaced)
	host, notReady := "db-0", false
	for _, err := range []error{
		services.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.7"}}),
		services.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}),
		slices.Add(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "db-x", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.128.1.2"}, Hostname: &host}, {Addresses: []string{"10.128.1.3"}},
				{Addresses: []string{"10.128.1.4"}, Conditions: discoveryv1.EndpointConditions{Ready: &notReady}},
			},
		}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dnsServer{services: corelisters.NewServiceLister(services), endpoints: discoverylisters.NewEndpointSliceLister(slices)}
}

func TestDNS(t *testing.T) {
	server := testDNS(t)
	for name, c := range map[string]struct {
		query string
		kind  dnsmessage.Type
		rcode dnsmessage.RCode
		want  string
	}{
		"a Service":                           {"web.a.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "10.0.0.7"},
		"upper case":                          {"WEB.a.svc.Cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "10.0.0.7"},
		"IPv6 of a Service is empty":          {"web.a.svc.cluster.local.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, ""},
		"the ready pods of a headless one":    {"db.a.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "10.128.1.2 10.128.1.3"},
		"one pod by its host name":            {"db-0.db.a.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "10.128.1.2"},
		"a pod that does not exist":           {"db-9.db.a.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		"a host of a Service with an address": {"x.web.a.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		"another namespace":                   {"web.b.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		"a name outside of the cluster":       {"example.com.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		"the domain itself":                   {"svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			query := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: 7},
				Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(c.query), Type: c.kind, Class: dnsmessage.ClassINET}},
			}
			packed, err := query.Pack()
			if err != nil {
				t.Fatal(err)
			}
			var response dnsmessage.Message
			if err := response.Unpack(server.respond(packed)); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, answer := range response.Answers {
				a, isA := answer.Body.(*dnsmessage.AResource)
				if !isA {
					t.Fatalf("an answer is a %T", answer.Body)
				}
				got = append(got, netip.AddrFrom4(a.A).String())
			}
			if response.ID != 7 || response.RCode != c.rcode || strings.Join(got, " ") != c.want {
				t.Errorf("got %v %v %q, want %v %q", response.ID, response.RCode, got, c.rcode, c.want)
			}
		})
	}
	for name, packet := range map[string][]byte{"nothing": nil, "a broken packet": []byte("broken"), "a response": {0, 7, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
		if got := server.respond(packet); got != nil {
			t.Errorf("%s was responded to with %d bytes", name, len(got))
		}
	}
}
