// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// through is a client of user demo for a member through the hub.
func (s *system) through(t *testing.T, cluster types.NamespacedName) client.WithWatch {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig(t, cluster, demoToken))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: testkit.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testWatch(t *testing.T, s *system) {
	cluster, agent := s.ready(t, "watch")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}
	create(t, s.member, namespace)
	follow := func(c client.WithWatch) watch.Interface {
		w, err := c.Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(namespace.Name), client.MatchingLabels{"watched": ""})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	w := follow(s.through(t, cluster))
	t.Run("a watch with nothing to say for longer than a tunnel's keepalive lives on", func(t *testing.T) {
		select {
		case event, ok := <-w.ResultChan():
			t.Fatalf("the watch says %+v, open: %t", event, ok)
		case <-time.After(35 * time.Second):
		}
	})
	t.Run("an event comes within 100 ms of a write in the member", func(t *testing.T) {
		testPrompt(t, s, namespace.Name, w, follow(s.member.Client))
	})
	t.Run("a watch ends when the agent dies, and the next one gets an error with the reason", func(t *testing.T) {
		kill(t, agent.Process)
		ended := within(t, 5*time.Second)
		for open := true; open; {
			select {
			case event, ok := <-w.ResultChan():
				if open = ok; ok && event.Type != watch.Error { // over HTTP/2 a client learns that the stream broke off
					t.Errorf("the watch says %+v", event)
				}
			case <-ended.Done():
				t.Fatal("the watch does not end")
			}
		}
		code, body := s.say(t, line("GET "+prefix(cluster)+"/api/v1/configmaps?watch=true"))
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "is not connected to the hub") {
			t.Errorf("another watch: %d: %s", code, body)
		}
	})
}

// testPrompt measures from the time when the write was seen without the hub, so that delays of a busy machine do not
// count.
func testPrompt(t *testing.T, s *system, namespace string, through, direct watch.Interface) {
	took, whole := make([]time.Duration, 21), make([]time.Duration, 21)
	for i := range took {
		name, began := fmt.Sprintf("object-%d", i), time.Now()
		create(t, s.member, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"watched": ""}}})
		expectEvent(t, direct, name)
		written := time.Now()
		expectEvent(t, through, name)
		took[i], whole[i] = time.Since(written), time.Since(began)
	}
	slices.Sort(took)
	slices.Sort(whole)
	middle := len(took) / 2
	t.Logf("p50 %s after it is seen without the hub, %s after the write began", took[middle], whole[middle])
	if took[middle] > 100*time.Millisecond {
		t.Error("that is too late")
	}
}

func expectEvent(t *testing.T, w watch.Interface, name string) {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		object, isMap := event.Object.(*corev1.ConfigMap)
		if !ok || event.Type != watch.Added || !isMap || object.Name != name {
			t.Fatalf("the watch says %+v, open: %t, not that %s was added", event, ok, name)
		}
	case <-time.After(testkit.Patience * 10 * time.Second):
		t.Fatalf("the watch has no event that %s was added", name)
	}
}
