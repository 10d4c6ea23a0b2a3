export { type ClientOptions, client, type ServiceCaller } from './client.js'
export { type ServiceHost, serve } from './serve.js'
export type {
  CallOptions,
  Client,
  Fields,
  Implementation,
  MessageFields,
  MethodName,
  ReflectedClient,
  ReflectedImplementation,
  RequestOf,
  ResponseOf,
  StaticService,
} from './types.js'
