// Makes modules count how often each of their branches is taken: a hook of Node.js's module loader, on its thread.
// The counters come from the target's process (control_host.ts), where libFuzzer reads them.
import type { LoadHook } from 'node:module'
import ts from 'typescript'

/** What is counted: both ends' code, the decoder that protobufjs generated, and what reads a ring's private data and frames. */
const COUNTED =
  /\/packages\/(swap-server\/(dist|generated)\/[^/]+|ring-transport\/dist\/(handshake|errors|transfer\/format))\.js$/

export const load: LoadHook = async (url, context, next) => {
  const loaded = await next(url, context)
  if (!COUNTED.test(url) || loaded.format !== 'module' || loaded.source == null) return loaded
  const source = typeof loaded.source === 'string' ? loaded.source : Buffer.from(loaded.source as Uint8Array)
  return { ...loaded, source: counting(source.toString(), url) }
}

/** The module with a counter for each branch. */
function counting(text: string, name: string): string {
  let counters = 0
  const transform: ts.TransformerFactory<ts.SourceFile> = (context) => {
    const { factory } = context
    const count = () =>
      factory.createPostfixIncrement(
        factory.createElementAccessExpression(
          factory.createIdentifier('__counters'),
          factory.createNumericLiteral(counters++),
        ),
      )
    const statement = () => factory.createExpressionStatement(count())
    const counted = (expression: ts.Expression) =>
      factory.createParenthesizedExpression(factory.createComma(count(), expression))
    const block = (...statements: ts.Statement[]) => factory.createBlock([statement(), ...statements], true)
    const arm = (body: ts.Statement) => (ts.isBlock(body) ? body : block(body))
    const visit = (node: ts.Node): ts.Node => {
      const made = ts.visitEachChild(node, visit, context)
      if (ts.isIfStatement(made))
        return factory.updateIfStatement(
          made,
          made.expression,
          arm(made.thenStatement),
          arm(made.elseStatement ?? factory.createEmptyStatement()),
        )
      if (ts.isConditionalExpression(made))
        return factory.updateConditionalExpression(
          made,
          made.condition,
          made.questionToken,
          counted(made.whenTrue),
          made.colonToken,
          counted(made.whenFalse),
        )
      if (ts.isBinaryExpression(made) && SHORT_CIRCUITS.has(made.operatorToken.kind))
        return factory.updateBinaryExpression(made, made.left, made.operatorToken, counted(made.right))
      if (ts.isCaseClause(made))
        return factory.updateCaseClause(made, made.expression, [statement(), ...made.statements])
      if (ts.isDefaultClause(made))
        return factory.updateDefaultClause(made, [statement(), ...made.statements])
      if (ts.isArrowFunction(made) && !ts.isBlock(made.body))
        return factory.updateArrowFunction(
          made,
          made.modifiers,
          made.typeParameters,
          made.parameters,
          made.type,
          made.equalsGreaterThanToken,
          counted(made.body),
        )
      return ts.isBlock(made) ? block(...made.statements) : made
    }
    return (file) => ts.visitEachChild(file, visit, context)
  }
  const { outputText } = ts.transpileModule(text, {
    fileName: name,
    compilerOptions: {
      target: ts.ScriptTarget.ES2022,
      module: ts.ModuleKind.ESNext,
      inlineSourceMap: true,
    },
    transformers: { before: [transform] },
  })
  return `const __counters = globalThis.makeFuzzCounters(${counters});${outputText}`
}

const SHORT_CIRCUITS = new Set([
  ts.SyntaxKind.AmpersandAmpersandToken,
  ts.SyntaxKind.BarBarToken,
  ts.SyntaxKind.QuestionQuestionToken,
])
