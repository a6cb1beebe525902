// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
	"github.com/drover-dev/drover/test/testkit"
)

// found records the addresses from a Finder.
type found struct {
	mu   sync.Mutex // guards last
	last []string
}

func (f *found) set(addresses []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = slices.Clone(addresses)
}

func (f *found) want(t *testing.T, addresses ...string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.last, addresses) {
			return fmt.Errorf("found %v, want %v", f.last, addresses)
		}
		return nil
	})
}

const (
	hubNamespace = "drover-system"
	peersService = "drover-peers"
)

// asManager returns a cache as the manager configures it, for a user who has only the manager's Role in its namespace.
func asManager(t *testing.T, env *testkit.Env) cache.Cache {
	t.Helper()
	file, err := os.Open(testkit.Path(t, "config/rbac/role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for documents := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		role := &rbacv1.Role{}
		if err := documents.Decode(role); err != nil {
			t.Fatalf("find the manager's Role in %s: %v", file.Name(), err)
		}
		if role.Kind == "Role" {
			env.Apply(t, role)
			break
		}
	}
	env.Apply(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: "drover-manager"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "drover-manager"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "manager"}},
	})
	cfg, err := config.Parse([]byte("{apiVersion: config.drover.dev/v1, kind: ManagerConfig, " +
		"server: {urls: [\"https://127.0.0.1\"]}, peers: {service: " + peersService + "}}"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	user := rest.CopyConfig(env.Config)
	user.Impersonate = rest.ImpersonationConfig{UserName: "manager", Groups: []string{"system:authenticated"}}
	options.Cache.Scheme = options.Scheme
	c, err := cache.New(user, options.Cache)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// during runs a function until the test ends.
func during(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// slice returns an EndpointSlice of a Service, with endpoints that are ready or not.
func slice(service, name string, addresses map[string]bool) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("peers"), Port: new(int32(8444)),
			Protocol: new(corev1.ProtocolTCP)}},
	}
	for address, ready := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(ready), Serving: new(ready),
				Terminating: new(!ready)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: hubNamespace,
				Name: "manager-" + strings.ReplaceAll(address, ".", "-")},
		})
	}
	return s
}

func TestEndpointsFindsTheReplicasBehindAService(t *testing.T) {
	env := testkit.StartMember(t)
	env.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hubNamespace}})
	endpoints := asManager(t, env)
	env.Apply(t, slice(peersService, "one", map[string]bool{"10.0.0.1": true}))
	env.Apply(t, slice("another", "another", map[string]bool{"10.0.9.9": true}))
	during(t, endpoints.Start)
	var seen found
	during(t, func(ctx context.Context) error {
		return peer.Endpoints(endpoints, hubNamespace, peersService)(ctx, seen.set)
	})

	change := func(name string, to map[string]bool) {
		t.Helper()
		var s discoveryv1.EndpointSlice
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: name}, &s); err != nil {
			t.Fatal(err)
		}
		s.Endpoints = slice(peersService, name, to).Endpoints
		if err := env.Client.Update(t.Context(), &s); err != nil {
			t.Fatal(err)
		}
	}
	seen.want(t, "10.0.0.1:8444") // and none of another Service
	change("one", map[string]bool{"10.0.0.1": true, "10.0.0.2": false})
	seen.want(t, "10.0.0.1:8444", "10.0.0.2:8444") // a replica that is not ready counts
	env.Apply(t, slice(peersService, "two", map[string]bool{"10.0.1.1": true}))
	seen.want(t, "10.0.0.1:8444", "10.0.0.2:8444", "10.0.1.1:8444")
	change("one", map[string]bool{"10.0.0.1": false})
	seen.want(t, "10.0.0.1:8444", "10.0.1.1:8444") // a replica that is gone does not count
	if err := env.Client.Delete(t.Context(), slice(peersService, "two", nil)); err != nil {
		t.Fatal(err)
	}
	seen.want(t, "10.0.0.1:8444")
	change("one", nil)
	seen.want(t)
}

func TestDiscoveryIsRepeatedAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var tries int
		n := peer.New(peer.Options{Members: members.New(logr.Discard(), time.Now).Replicas, Log: logr.Discard(),
			Find: func(context.Context, func([]string)) error {
				if tries++; tries == 3 {
					cancel()
				}
				return errors.New("the API server is away")
			}})
		start := time.Now()
		peer.FindUntil(ctx, n)
		if took := time.Since(start); tries != 3 || took < 2*time.Second || took > 10*time.Second {
			t.Errorf("got %d attempts in %s, want 3 in 2 to 10 s", tries, took)
		}
	})
}
