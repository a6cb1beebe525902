// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Kubernetes' own JavaScript client lists, watches and watches by WebSocket at SERVER, with TOKEN, in NAMESPACE. As the
// client of a page does, it sends the Origin of ORIGIN with the WebSocket. It ends with code 0 if all answers are those
// of an API server.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { CoreV1Api, KubeConfig, Watch } from '@kubernetes/client-node'
// It uses this class for exec and attach, and does not export it.
import { WebSocketHandler } from './node_modules/@kubernetes/client-node/dist/web-socket-handler.js'

const WebSocket = createRequire(createRequire(import.meta.url).resolve('@kubernetes/client-node'))('ws')
const { SERVER, TOKEN, NAMESPACE, ORIGIN } = process.env
const kc = new KubeConfig()
kc.loadFromClusterAndUser({ name: 'c', server: SERVER, skipTLSVerify: true }, { name: 'u', token: TOKEN })
const api = kc.makeApiClient(CoreV1Api)
const path = `/api/v1/namespaces/${NAMESPACE}/configmaps`
const name = 'js-' + Math.random().toString(36).slice(2)

// seen resolves with the event of the ConfigMap, in the two forms of a watch.
function seen(begin) {
  return new Promise((resolve, reject) => {
    begin((event) => event.object.metadata?.name === name && resolve(event.type), reject)
  })
}

const before = await api.listNamespacedConfigMap({ namespace: NAMESPACE })
const since = before.metadata.resourceVersion
const overHTTP = seen((found, failed) => {
  new Watch(kc).watch(path, { resourceVersion: since }, (type, object) => found({ type, object }), failed)
})
const handler = new WebSocketHandler(kc, (uri, _, opts) => new WebSocket(uri, [], { ...opts, origin: ORIGIN }))
let socket
const overWebSocket = seen(async (found, failed) => {
  try {
    socket = await handler.connect(`${path}?watch=1&resourceVersion=${since}`, (text) => {
      found(JSON.parse(text))
      return true
    })
  } catch (error) {
    failed(error)
  }
})
await api.createNamespacedConfigMap({ namespace: NAMESPACE, body: { metadata: { name } } })
assert.deepEqual(await Promise.all([overHTTP, overWebSocket]), ['ADDED', 'ADDED'])
socket.close()
await api.deleteNamespacedConfigMap({ namespace: NAMESPACE, name })
process.exit(0) // the other watch goes on
