// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kube contains a client for the member's API server, with support for only the types that the agent needs.
package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Client sends requests to the member's API server as the agent itself, never as a user.
type Client struct {
	// REST is a client for version v1 of the core group. It uses protobuf.
	REST rest.Interface
	// Any is a client that decodes objects of any kind as Whole.
	Any rest.Interface
}

// Config returns the configuration for the API server. It reads the kubeconfig at path. If path is empty, it reads the
// configuration of the pod that the agent runs in.
func Config(path, userAgent string) (*rest.Config, error) {
	cfg, err := loadConfig(path)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	if cfg.Proxy == nil { // a kubeconfig may specify a proxy
		cfg.Proxy = direct
	}
	cfg.QPS = -1 // no limit, because the agent itself sends few requests and the API server limits users' requests
	return cfg, nil
}

// direct is a proxy function that selects no proxy. The proxies in the environment are only for connections to the hub.
// A proxy on the way to the API server would see the agent's token, and could impersonate the API server.
func direct(*http.Request) (*url.URL, error) { return nil, nil }

func loadConfig(path string) (*rest.Config, error) {
	if path == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the cluster of the agent: %w: outside of a pod use --kubeconfig", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return cfg, nil
}

// New returns a client. Its scheme contains all core types and, from other groups, only the types that the agent uses.
// A scheme with all Kubernetes groups would use more memory than the rest of the agent.
func New(cfg *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register core types: %w", err)
	}
	scheme.AddKnownTypes(appsv1.SchemeGroupVersion, &appsv1.Deployment{}, &appsv1.DaemonSet{})
	scheme.AddKnownTypes(batchv1.SchemeGroupVersion, &batchv1.Job{}, &batchv1.JobList{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	scheme.AddKnownTypes(policyv1.SchemeGroupVersion, &policyv1.Eviction{})
	scheme.AddKnownTypes(v1.GroupVersion, &v1.Plan{}, &v1.PlanList{})
	if err := metav1.AddMetaToScheme(scheme); err != nil { // for reading only the metadata of any object
		return nil, fmt.Errorf("register metadata: %w", err)
	}
	for _, group := range []schema.GroupVersion{{Version: "v1"}, appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion,
		v1.GroupVersion} {
		metav1.AddToGroupVersion(scheme, group)
	}

	cfg = rest.CopyConfig(cfg)
	cfg.APIPath = "/api"
	cfg.GroupVersion = &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	connections, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	client, err := rest.RESTClientForConfigAndClient(cfg, connections)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	cfg.NegotiatedSerializer, cfg.ContentType, cfg.AcceptContentTypes = newAnyKind(), runtime.ContentTypeJSON, ""
	all, err := rest.RESTClientForConfigAndClient(cfg, connections)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &Client{REST: client, Any: all}, nil
}

// ClusterUID returns the UID of the kube-system namespace, which identifies the cluster.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	var ns corev1.Namespace
	if err := c.REST.Get().Resource("namespaces").Name(metav1.NamespaceSystem).Do(ctx).Into(&ns); err != nil {
		return "", fmt.Errorf("read namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

type object struct {
	rest                              rest.Interface
	kind, collection, namespace, name string
}

// object returns an object in version v1 of an API group.
func (c *Client) object(kind, group, resource, namespace, name string) object {
	return object{c.REST, kind, "/apis/" + group + "/v1/namespaces/" + namespace + "/" + resource, namespace, name}
}

func (o object) at(req *rest.Request) *rest.Request { return req.AbsPath(o.collection, o.name) }

func (o object) wrap(operation string, err error) error {
	return named(err, operation, o.kind, o.namespace, o.name)
}

// named adds the operation and the object to an error from the API server.
func named(err error, operation, kind, namespace, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s/%s: %w", operation, kind, namespace, name, err)
}

// PodUID returns the UID of the pod in which this process runs. It reads the UID from the ServiceAccount token, which
// is bound to the pod. The result is empty if there is no such token. It is also empty for a client with a kubeconfig,
// because several processes can share a kubeconfig.
func PodUID(cfg *rest.Config, kubeconfig string) string {
	if kubeconfig != "" || cfg.BearerTokenFile == "" {
		return ""
	}
	token, err := os.ReadFile(cfg.BearerTokenFile) // only the kubelet writes the file
	var claims struct {
		Kubernetes struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if err != nil || untrusted.Claims(strings.TrimSpace(string(token)), &claims, untrusted.Small()) != nil {
		return ""
	}
	return claims.Kubernetes.Pod.UID
}
