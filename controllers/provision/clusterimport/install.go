// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package clusterimport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/remote"
	"github.com/drover-dev/drover/internal/untrusted"
)

// installTime is the time limit for an installation. It limits how long an unresponsive server can block other
// installations.
const installTime = time.Minute

// fieldOwner is the field manager of all objects that are applied in the cluster.
const fieldOwner = "drover-import"

// maxAnswer is the maximum number of bytes that are read from a response. The content is discarded. It is read only so
// that the connection can be reused.
const maxAnswer = 1 << 20

// install applies the agent's manifest in the cluster. Its errors contain no text from the cluster's API server.
//
// The author of the kubeconfig controls that server, so its responses are not decoded. The URL paths for the kinds in
// the manifest are built in, and only the status code of each response is used.
func (r *Reconciler) install(ctx context.Context, in *input) error {
	config, err := remote.Config(in.kubeconfig, r.Reach)
	if err != nil {
		return err
	}
	there, err := remote.Client(config)
	if err != nil {
		return err
	}
	defer there.CloseIdleConnections()
	server, err := url.Parse(config.Host)
	if err != nil {
		return errors.New("its server is not a URL")
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(in.manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errManifest
		}
		content, err := untrusted.AsJSON(document, untrusted.Large())
		if err != nil {
			return errManifest
		}
		if err := apply(ctx, there, server, content); err != nil {
			return err
		}
	}
}

var errManifest = errors.New("the agent's manifest cannot be read")

func apply(ctx context.Context, there *http.Client, server *url.URL, content []byte) error {
	object := &metav1.PartialObjectMetadata{}
	if err := untrusted.JSON(content, object, untrusted.Large()); err != nil {
		return errManifest
	}
	if object.Kind == "" && object.APIVersion == "" { // an empty document between two separators
		return nil
	}
	to, err := address(server, object)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, to, bytes.NewReader(content))
	if err != nil {
		return errManifest
	}
	request.Header.Set("Content-Type", string(types.ApplyYAMLPatchType)) // JSON is a subset of YAML
	request.Header.Set("Accept", "application/json")
	answer, err := there.Do(request)
	if err != nil {
		return fmt.Errorf("apply %s %s: %s", object.Kind, object.Name, problem(err))
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("apply %s %s: the API server answered %d", object.Kind, object.Name, answer.StatusCode)
	}
	return nil
}

// address returns the URL for applying an object. The URL does not depend on which kinds the server serves, because the
// manifest contains only known kinds.
func address(server *url.URL, object *metav1.PartialObjectMetadata) (string, error) {
	kinds := append(protocol.ManifestKinds(), protocol.ObjectKind{Name: "Namespace", APIVersion: "v1", Resource: "namespaces"})
	i := slices.IndexFunc(kinds, func(k protocol.ObjectKind) bool { return k.Name == object.Kind && k.APIVersion == object.APIVersion })
	if i < 0 {
		return "", fmt.Errorf("the agent's manifest has a %s of %s, which an import does not apply", object.Kind, object.APIVersion)
	}
	path := []string{"apis", object.APIVersion}
	if object.APIVersion == "v1" {
		path = []string{"api", "v1"}
	}
	if kinds[i].Namespaced {
		path = append(path, "namespaces", object.Namespace)
	}
	to := server.JoinPath(append(path, kinds[i].Resource, object.Name)...)
	to.RawQuery = url.Values{"fieldManager": {fieldOwner}, "force": {"true"}}.Encode()
	return to.String(), nil
}

// problem describes an error in general terms. It does not repeat any text from the server, because the author of the
// kubeconfig can choose that text.
func problem(err error) string {
	switch {
	case errors.Is(err, remote.ErrRedirect):
		return remote.ErrRedirect.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "the API server did not answer in time"
	}
	return "the API server cannot be reached, has no certificate of the kubeconfig's CA, or has an address that belongs to this machine, is link-local, or is reserved"
}
