// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package clusterimport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/remote"
)

// installTime bounds an installation: a server that does not answer keeps others waiting no longer.
const installTime = time.Minute

// fieldOwner is the field manager of what is applied there.
const fieldOwner = client.FieldOwner("drover-import")

// maxAnswer bounds what is read of an answer, in bytes. Those of discovery are the longest.
const maxAnswer = 16 << 20

// install applies the agent's manifest in the cluster. Its errors have no text of the other server in them.
func (r *Reconciler) install(ctx context.Context, in *input) error {
	config, err := remote.Config(in.kubeconfig, r.Reach)
	if err != nil {
		return err
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next} })
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	there, err := client.New(config, client.Options{})
	if err != nil {
		return errors.New("no client can be made of it")
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(in.manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return errors.New("the agent's manifest cannot be read")
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := there.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s: %s", object.GetKind(), object.GetName(), problem(err))
		}
	}
}

// problem says what kind of error it is, without the words of the server: who writes a kubeconfig chooses that.
func problem(err error) string {
	var answer apierrors.APIStatus
	switch {
	case errors.As(err, &answer):
		return fmt.Sprintf("the API server answered %d", answer.Status().Code)
	case errors.Is(err, remote.ErrRedirect):
		return remote.ErrRedirect.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "the API server did not answer in time"
	}
	return "the API server cannot be reached, is not the one of the kubeconfig's CA, or is at an address of this machine, of its link or reserved"
}

// bounded reads answers to a bound.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}
