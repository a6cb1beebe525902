// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
)

// missAgain is how long the agent waits before it checks again for a kind that the API server did not serve.
const missAgain = time.Second

// kinds finds the API path at which the API server serves a kind. The list of a group changes only when a kind is
// installed, so the list is read again only for a kind that it does not contain.
type kinds struct {
	client *kube.Client
	now    func() time.Time

	mu     sync.Mutex // guards the field below
	groups map[string]groupKinds
}

// groupKinds holds the kinds in one version of an API group.
type groupKinds struct {
	read  time.Time
	kinds map[string]served
}

// served describes a kind that the API server serves.
type served struct {
	root       string // path of the version, such as "/apis/apps/v1"
	resource   string
	namespaced bool
}

// path returns the path of an object, or of the collection of all objects if the name is empty.
func (s served) path(namespace, name string) string {
	path := s.root
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + s.resource
	if name != "" {
		path += "/" + name
	}
	return path
}

func newKinds(client *kube.Client, now func() time.Time) *kinds {
	return &kinds{client: client, now: now, groups: map[string]groupKinds{}}
}

// forget makes find request the kinds of an API group version again.
func (k *kinds) forget(apiVersion string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if group, known := k.groups[apiVersion]; known && k.now().Sub(group.read) >= missAgain {
		delete(k.groups, apiVersion)
	}
}

// find returns a kind. The ok result is false if the API server does not serve the kind.
func (k *kinds) find(ctx context.Context, apiVersion, name string) (found served, ok bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	group, known := k.groups[apiVersion]
	if found, ok = group.kinds[name]; ok || known && k.now().Sub(group.read) < missAgain {
		return found, ok, nil
	}
	group = groupKinds{read: k.now(), kinds: map[string]served{}}
	root := "/apis/" + apiVersion
	if apiVersion == "v1" {
		root = "/api/v1"
	}
	var list metav1.APIResourceList
	if err := k.client.Objects().Whole(ctx, root, &list); err != nil && !apierrors.IsNotFound(err) {
		return served{}, false, fmt.Errorf("look for the kind %s of %s: %w", name, apiVersion, err)
	}
	for _, r := range list.APIResources {
		// The name of a subresource contains a slash. Objects that cannot be watched cannot be kept.
		if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "watch") && slices.Contains(r.Verbs, "patch") {
			group.kinds[r.Kind] = served{root, r.Name, r.Namespaced}
		}
	}
	k.groups[apiVersion] = group
	found, ok = group.kinds[name]
	return found, ok, nil
}
