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

// installTime bounds an installation: a server that does not answer keeps others waiting no longer.
const installTime = time.Minute

// fieldOwner is the field manager of what is applied there.
const fieldOwner = "drover-import"

// maxAnswer bounds what is read of an answer, in bytes. Nothing of it is kept: it is read so that the connection can be
// used again.
const maxAnswer = 1 << 20

// install applies the agent's manifest in the cluster. Its errors have no text of the other server in them.
//
// The other server is of whoever wrote the kubeconfig. So nothing that it answers is decoded: the paths of the
// manifest's kinds are known here, and of an answer only the code counts.
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
		return errors.New("its server is no URL")
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

// apply applies an object of the manifest.
func apply(ctx context.Context, there *http.Client, server *url.URL, content []byte) error {
	object := &metav1.PartialObjectMetadata{}
	if err := untrusted.JSON(content, object, untrusted.Large()); err != nil {
		return errManifest
	}
	if object.Kind == "" && object.APIVersion == "" { // between two lines of dashes
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
	request.Header.Set("Content-Type", string(types.ApplyYAMLPatchType)) // JSON is YAML
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

// address is where an object is applied. Which kinds the other server says that it has does not matter: the manifest
// has none but these.
func address(server *url.URL, object *metav1.PartialObjectMetadata) (string, error) {
	kinds := append(protocol.ManifestKinds(), protocol.ObjectKind{Name: "Namespace", APIVersion: "v1", Resource: "namespaces"})
	i := slices.IndexFunc(kinds, func(k protocol.ObjectKind) bool { return k.Name == object.Kind && k.APIVersion == object.APIVersion })
	if i < 0 {
		return "", fmt.Errorf("the agent's manifest has a %s of %s, which is not applied by an import", object.Kind, object.APIVersion)
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

// problem says what kind of error it is, without the words of the server: who writes a kubeconfig chooses that.
func problem(err error) string {
	switch {
	case errors.Is(err, remote.ErrRedirect):
		return remote.ErrRedirect.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "the API server did not answer in time"
	}
	return "the API server cannot be reached, is not the one of the kubeconfig's CA, or is at an address of this machine, of its link or reserved"
}
