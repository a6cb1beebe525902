// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testkit provides tests with an API server, objects and an in-memory agent.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
)

// Env is a real API server with etcd and the kinds of api/v1.
type Env struct {
	// Config is the administrator's configuration.
	Config *rest.Config
	// Client reads directly from the API server, not from a cache.
	Client client.WithWatch
}

// Start starts an API server that ends with the test. Use it for a test that reads or changes objects that it did not
// create. Other tests share a server; see Shared. lab.Binaries finds or builds the binaries.
func Start(t testing.TB) *Env {
	t.Helper()
	return startFor(t, hubEnvironment(Path(t, "config/crd/bases")))
}

// StartMember is like Start, but without the hub's CRDs, which take the API server about a second of CPU time.
func StartMember(t testing.TB) *Env {
	t.Helper()
	return startFor(t, &envtest.Environment{})
}

// StartMemberServing is like StartMember, but the API server also serves the given version of an API, which it does not
// serve by default.
func StartMemberServing(t testing.TB, groupVersion string) *Env {
	t.Helper()
	environment := &envtest.Environment{}
	environment.ControlPlane.GetAPIServer().Configure().Append("runtime-config", groupVersion+"=true")
	return startFor(t, environment)
}

// hubEnvironment returns an environment with the CRDs in a folder.
func hubEnvironment(crds string) *envtest.Environment {
	return &envtest.Environment{CRDDirectoryPaths: []string{crds}}
}

func startFor(t testing.TB, environment *envtest.Environment) *Env {
	t.Helper()
	env, stop, err := start(t.Context(), environment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// start starts an API server.
func start(ctx context.Context, environment *envtest.Environment) (*Env, func() error, error) {
	assets, err := lab.Binaries(ctx, os.Stderr, lab.Etcd, lab.APIServer, lab.Kubectl)
	if err != nil {
		return nil, nil, err
	}
	dir, err := assets.EnvtestDir()
	if err != nil {
		return nil, nil, err
	}
	environment.BinaryAssetsDirectory, environment.ErrorIfCRDPathMissing = dir, true
	// The usual 20 s are too short on a machine that runs the tests of other packages at the same time.
	environment.ControlPlaneStartTimeout = Patience * time.Minute
	config, err := environment.Start()
	if err != nil {
		return nil, nil, errors.Join(err, environment.Stop()) // both programs would keep running if the CRDs were refused
	}
	config.QPS = -1
	s, err := newScheme()
	if err != nil {
		return nil, nil, errors.Join(err, environment.Stop())
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: s})
	if err != nil {
		return nil, nil, errors.Join(err, environment.Stop())
	}
	return &Env{Config: config, Client: c}, environment.Stop, nil
}

// Scheme contains the kinds of Kubernetes and of api/v1.
func Scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(scheme.AddToScheme(s), v1.AddToScheme(s), infrav1.AddToScheme(s), provisionv1.AddToScheme(s))
}

// Path returns the path of a file or folder in the repository.
func Path(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "PROJECT")); err == nil {
			return filepath.Join(dir, name)
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		t.Fatal("not inside the repository")
	}
}

// Workspace creates a new namespace for a test.
func (e *Env) Workspace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "workspace-"}}
	if err := e.Client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

// Apply creates an object, and fails the test if the API server refuses it.
func (e *Env) Apply(t testing.TB, object client.Object) {
	t.Helper()
	if err := e.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// Update reads an object and changes it. It retries if another client has written the object in the meantime.
func Update[T client.Object](t testing.TB, c client.Client, object T, change func(T)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change(object)
		return c.Update(t.Context(), object)
	})
	if err != nil {
		t.Fatalf("update %T %s: %v", object, client.ObjectKeyFromObject(object), err)
	}
}

// AwaitRights waits until the API server grants the user the rights in the namespace, or in all namespaces if namespace
// is empty. The API server processes roles and bindings shortly after they are created. AwaitRights checks each verb
// and resource of the rules.
func (e *Env) AwaitRights(t testing.TB, user, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	Eventually(t, 10*time.Second, func(ctx context.Context) error {
		for _, attributes := range attributesOf(namespace, rules) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &attributes}}
			if err := e.Client.Create(ctx, review); err != nil {
				return fmt.Errorf("review %s: %w", user, err)
			}
			if !review.Status.Allowed {
				return fmt.Errorf("%s may not yet %s %s", user, attributes.Verb, attributes.Resource)
			}
		}
		return nil
	})
}

func attributesOf(namespace string, rules []rbacv1.PolicyRule) []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				base, sub, _ := strings.Cut(resource, "/")
				all = append(all, authorizationv1.ResourceAttributes{
					Namespace: namespace, Verb: verb, Group: rule.APIGroups[0], Resource: base, Subresource: sub, Name: names[0]})
			}
		}
	}
	return all
}

// Eventually waits until check returns nil because of the work of another goroutine or process. If it does not,
// Eventually fails the test with the last error. within must exceed the time on any idle machine. To allow for busy
// machines, Eventually waits Patience times as long.
func Eventually(t testing.TB, within time.Duration, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within*Patience)
	defer cancel()
	wait := pause(0)
	next := time.NewTimer(wait)
	defer next.Stop()
	var err error
	for {
		last := check(ctx)
		if last == nil {
			return
		}
		if err == nil || ctx.Err() == nil { // a check that the deadline interrupts does not count
			err = last
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %v", within*Patience, err)
		case <-next.C:
			wait = pause(wait)
			next.Reset(wait)
		}
	}
}
